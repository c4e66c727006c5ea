"""The figures of the benchmark `cpu`: every single value, what follows from them, and their JSON. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.loadgen.table import number
from benchmarks.cpu.cells import FORMATS, KINDS, OURS, Cell, Kind, Probe, Rates, limit, work
from benchmarks.limits import Limit, Verdict, limits


class Ratio(NamedTuple):
    """How many times as fast as a peer Quire was, and must be (None: nothing is required)."""

    what: str
    peer: str
    ratio: float
    required: Limit | None

    @property
    def verdict(self) -> Verdict | None:
        """Whether that is enough; None where nothing is required."""
        return None if self.required is None else Verdict(self.required, self.ratio, f"beside {self.peer}")

    @property
    def is_met(self) -> bool:
        """Whether it is enough, also where nothing is required."""
        return self.required is None or self.required.allows(self.ratio)

    def to_json(self) -> dict[str, object]:
        """Return all of it."""
        return {
            "best_peer": self.peer,
            "ratio": round(self.ratio, 3),
            "required": self.required and self.required.value,
            "is_met": None if self.required is None else self.is_met,
        }

    def __str__(self) -> str:
        return str(self.verdict or f"{self.what} is {number(self.ratio)} times {self.peer}")


class Shares(NamedTuple):
    """Quire's rate as a share of the machine's limit, of its reading, and of its multiplying; each up to 1."""

    of_limit: float
    of_read: float
    of_compute: float


@dataclass(slots=True)
class CellFigures:
    """What was measured in one cell: the rates of each side by turns, and the machine before each of Quire's."""

    cell: Cell
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        """The measured sides, Quire first."""
        return _ours_first(self.rates)

    @property
    def machine(self) -> Probe:
        """The medians of what the machine could do meanwhile."""
        read, bf16, int8 = (
            statistics.median(getattr(probe, name) for probe in self.probes) for name in ("read", "bf16", "int8")
        )
        return Probe(read, bf16, int8, self.probes[0].how)

    def values(self, side: str, kind: Kind) -> list[float]:
        """Return the rates of a side by turns, tokens per second."""
        return [getattr(found, kind) for found in self.rates[side]]

    def median(self, side: str, kind: Kind) -> float:
        """Return the rate of a side, tokens per second."""
        return statistics.median(self.values(side, kind))

    def ratio(self, kind: Kind) -> Ratio | None:
        """Compare Quire with the best peer; None where one of them is missing."""
        medians = {side: self.median(side, kind) for side in self.sides}
        ours = medians.pop(OURS, None)
        if ours is None or not medians:
            return None
        best = max(medians, key=lambda side: medians[side])
        return Ratio(f"{self.cell} {kind}", best, ours / medians[best], self.cell.required(kind))

    def limit(self, kind: Kind) -> float:
        """Return the tokens per second that the machine allowed at most."""
        return limit(self.cell, kind, self.machine)

    def shares(self, kind: Kind) -> Shares:
        """Return Quire's shares of what the machine can do."""
        rate, needed, machine = self.median(OURS, kind), work(self.cell, kind), self.machine
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
            "tokens_per_second": {side: {kind: self.values(side, kind) for kind in KINDS} for side in self.sides},
            "machine": {name: [getattr(probe, name) for probe in self.probes] for name in ("read", "bf16", "int8")},
            "work": {kind: work(cell, kind)._asdict() for kind in KINDS},
            "verdicts": {kind: ratio.to_json() if (ratio := self.ratio(kind)) else None for kind in KINDS},
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
        """The measured sides, Quire first."""
        return _ours_first(self.rates)

    def median(self, side: str) -> float:
        """Return the rate of a side, new tokens per second."""
        return statistics.median(self.rates[side])

    def ratios(self) -> list[Ratio]:
        """Compare Quire with each peer."""
        if OURS not in self.sides:
            return []
        ours, required = self.median(OURS), limits("cpu")
        return [
            Ratio("mixed load", side, ours / self.median(side), required.get(f"mixed load, {side}"))
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
        """The speed of the machine beside the largest model, which no cache holds; None before the first cell."""
        probed = [cell for cell in self.cells if cell.probes]
        largest = max(probed, key=lambda cell: work(cell.cell, "decode").weight_bytes, default=None)
        return None if largest is None else largest.machine

    @property
    def shown(self) -> list[CellFigures]:
        """The measured cells worth a bar: those in which something is required, else all."""
        measured = [cell for cell in self.cells if OURS in cell.sides]
        return [cell for cell in measured if cell.cell.required("decode")] or measured

    def ratios(self) -> Iterator[Ratio]:
        """Yield all comparisons."""
        for cell in self.cells:
            yield from filter(None, map(cell.ratio, KINDS))
        yield from self.mixed.ratios()

    def verdicts(self) -> list[Verdict]:
        """Judge these comparisons by their limits."""
        return [verdict for ratio in self.ratios() if (verdict := ratio.verdict) is not None]

    def to_json(self) -> dict[str, object]:
        """Return everything, with what follows from it."""
        return {
            "benchmark": "cpu",
            **self.about,
            "left_out": self.left_out,
            "commands": {side: command.replace(f"{Path.cwd()}/", "") for side, command in self.commands.items()},
            "cells": [cell.to_json() for cell in self.cells],
            "mixed_load": {
                "tokens_per_second": self.mixed.rates,
                "verdicts": {ratio.peer: ratio.to_json() for ratio in self.mixed.ratios()},
            },
        }


def _ours_first(rates: Mapping[str, Sequence[object]]) -> list[str]:
    return sorted((name for name, found in rates.items() if found), key=lambda name: name != OURS)
