"""The figures of the benchmark `cpu`: every single value, what follows from them, and their JSON. No torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.cpu.cells import FORMATS, KINDS, MIXED_RATIOS, OURS, Cell, Kind, Probe, Rates, limit, work


class Verdict(NamedTuple):
    """How many times as fast as a peer Quire was, and must be (None: nothing is required)."""

    what: str
    peer: str
    ratio: float
    required: float | None

    @property
    def is_met(self) -> bool:
        """Whether enough, also where nothing is required."""
        return self.required is None or self.ratio >= self.required


class Shares(NamedTuple):
    """Quire's rate as a share of the machine's limit, of its reading, and of its multiplying; each up to 1."""

    of_limit: float
    of_read: float
    of_compute: float


class Spread(NamedTuple):
    """The median of some values, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Describe at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class CellFigures:
    """What was measured in one cell: the rates of each side by turns, and the machine before each of Quire's."""

    cell: Cell
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        """Who was measured, Quire first."""
        return _ours_first(self.rates)

    @property
    def machine(self) -> Probe:
        """The medians of what the machine could do meanwhile."""
        read, bf16, int8 = (
            statistics.median(getattr(probe, name) for probe in self.probes) for name in ("read", "bf16", "int8")
        )
        return Probe(read, bf16, int8, self.probes[0].how)

    def spread(self, side: str, kind: Kind) -> Spread:
        """Return the rate of a side, tokens per second."""
        return Spread.of([getattr(found, kind) for found in self.rates[side]])

    def verdict(self, kind: Kind) -> Verdict | None:
        """Compare Quire with the best peer; None where one of them is missing."""
        medians = {side: self.spread(side, kind).median for side in self.sides}
        ours = medians.pop(OURS, None)
        if ours is None or not medians:
            return None
        best = max(medians, key=lambda side: medians[side])
        return Verdict(f"{self.cell} {kind}", best, ours / medians[best], getattr(self.cell, kind))

    def limit(self, kind: Kind) -> float:
        """Return the tokens per second that the machine allowed at most."""
        return limit(self.cell, kind, self.machine)

    def shares(self, kind: Kind) -> Shares:
        """Return what Quire made of the machine."""
        rate, needed, machine = self.spread(OURS, kind).median, work(self.cell, kind), self.machine
        per_second = rate / needed.num_tokens
        return Shares(
            rate / self.limit(kind),
            (needed.weight_bytes + needed.kv_bytes) * per_second / machine.read,
            needed.operations * per_second / machine.speed(self.cell.format),
        )

    def to_json(self) -> dict[str, object]:
        """Return everything, with what follows from it."""
        cell = self.cell
        found: dict[str, object] = {
            "shape": cell.shape,
            "format": cell.format,
            "llama_cpp_type": FORMATS[cell.format].gguf,
            "batch": cell.batch,
            "tokens_per_second": {
                side: {kind: [getattr(rates, kind) for rates in self.rates[side]] for kind in KINDS}
                for side in self.sides
            },
            "machine": {name: [getattr(probe, name) for probe in self.probes] for name in ("read", "bf16", "int8")},
            "work": {kind: work(cell, kind)._asdict() for kind in KINDS},
            "verdicts": {kind: _verdict_json(self.verdict(kind)) for kind in KINDS},
        }
        if self.probes:
            found["limit"] = {kind: self.limit(kind) for kind in KINDS}
            found["shares"] = {kind: self.shares(kind)._asdict() for kind in KINDS if OURS in self.sides}
        return found


@dataclass(slots=True)
class MixedFigures:
    """The mixed load: new tokens per second of each side by turns."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    @property
    def sides(self) -> list[str]:
        """Who was measured, Quire first."""
        return _ours_first(self.rates)

    def spread(self, side: str) -> Spread:
        """Return the rate of a side, new tokens per second."""
        return Spread.of(self.rates[side])

    def verdicts(self) -> list[Verdict]:
        """Compare Quire with each peer."""
        if OURS not in self.sides:
            return []
        ours = self.spread(OURS).median
        return [
            Verdict("mixed load", side, ours / self.spread(side).median, MIXED_RATIOS.get(side))
            for side in self.sides[1:]
        ]


@dataclass(slots=True)
class Figures:
    """One run: the cells so far, what was left out and why, and what describes the run."""

    about: Mapping[str, object]
    cells: list[CellFigures] = field(default_factory=list)
    mixed: MixedFigures = field(default_factory=MixedFigures)
    left_out: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    has_failed: bool = False  # set by Rounds when Quire itself failed

    @property
    def machine(self) -> Probe | None:
        """What the machine could do beside the largest model, which no cache holds; None before the first cell."""
        probed = [cell for cell in self.cells if cell.probes]
        largest = max(probed, key=lambda cell: work(cell.cell, "decode").weight_bytes, default=None)
        return None if largest is None else largest.machine

    @property
    def shown(self) -> list[CellFigures]:
        """The measured cells worth a bar: those in which something is required, else all."""
        measured = [cell for cell in self.cells if OURS in cell.sides]
        return [cell for cell in measured if cell.cell.decode is not None] or measured

    def verdicts(self) -> Iterator[Verdict]:
        """Yield all comparisons."""
        for cell in self.cells:
            yield from filter(None, map(cell.verdict, KINDS))
        yield from self.mixed.verdicts()

    def missed(self) -> list[Verdict]:
        """Return the comparisons in which Quire was not as fast as required."""
        return [verdict for verdict in self.verdicts() if not verdict.is_met]

    def save(self, file: Path) -> None:
        """Write the JSON; the file is always whole."""
        found = {
            "benchmark": "cpu",
            **self.about,
            "left_out": self.left_out,
            "commands": {side: command.replace(f"{Path.cwd()}/", "") for side, command in self.commands.items()},
            "cells": [cell.to_json() for cell in self.cells],
            "mixed_load": {
                "tokens_per_second": self.mixed.rates,
                "verdicts": {verdict.peer: _verdict_json(verdict) for verdict in self.mixed.verdicts()},
            },
        }
        part = file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(file)


def _ours_first(rates: Mapping[str, Sequence[object]]) -> list[str]:
    return sorted((name for name, found in rates.items() if found), key=lambda name: name != OURS)


def _verdict_json(verdict: Verdict | None) -> dict[str, object] | None:
    if verdict is None:
        return None
    return {
        "best_peer": verdict.peer,
        "ratio": round(verdict.ratio, 3),
        "required": verdict.required,
        "is_met": verdict.is_met if verdict.required is not None else None,
    }
