"""The figures of `cpu --gguf` and `--families`: every value, what follows from them, and their JSON. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Cell, Load
from benchmarks.cpu.gguf.dummies import DUMMIES
from benchmarks.cpu.gguf.files import Contents
from benchmarks.cpu.gguf.sides import THEIRS, Rates
from benchmarks.limits import Limit, Verdict, judge, limits

Quality = Mapping[str, float]
"""The fields of `quality.Quality`."""


@dataclass(slots=True)
class CellFigures:
    """What was measured of one cell.

    Attributes:
        rates: of each side by turns.
        read_rates: the machine's reading before each turn.
        distinct: of a mixture, how many experts of each layer have rows in a step, by the name of the load.
        loading_s: the seconds that each side takes to open the file.
        passing_bytes: Quire's most memory meanwhile beyond what stays.
    """

    cell: Cell
    contents: Contents
    quality: Quality | None = None
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    read_rates: list[float] = field(default_factory=list)
    distinct: dict[str, list[float]] = field(default_factory=dict)
    loading_s: dict[str, list[float]] = field(default_factory=dict)
    passing_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether both sides were measured."""
        return all(self.rates.get(side) for side in (OURS, THEIRS))

    def values(self, side: str, load: Load) -> list[float]:
        """Return the rates of a side by turns, tokens per second."""
        return [rates[load.name] for rates in self.rates.get(side, [])]

    def ratio(self, load: Load) -> float:
        """Return how many times as fast as llama.cpp Quire is."""
        ours, theirs = (statistics.median(self.values(side, load)) for side in (OURS, THEIRS))
        return ours / theirs

    def verdict(self, load: Load) -> Verdict:
        """Hold that ratio against what is required."""
        return Verdict(required(self.cell, load), self.ratio(load), str(self.cell))

    def step_bytes(self, load: Load) -> float:
        """Return the bytes of the matrices that a step reads: of experts, of those that have rows."""
        return self.contents.step_bytes(self.distinct.get(load.name, ()))

    def read_share(self, load: Load) -> float | None:
        """Return the share of the machine's reading that the matrices alone take; None for a prompt.

        It is the median of the rounds' shares: a machine may read fast in one round and slowly in the next.
        """
        rounds = list(zip(self.values(OURS, load), self.read_rates, strict=False))
        if not load.num_steps or not rounds:
            return None
        return statistics.median(rate / read_rate for rate, read_rate in rounds) * self.step_bytes(load) / load.batch

    def verdicts(self) -> list[Verdict]:
        """Return all verdicts: ratios, and of dummies how near the reading steps are and what loading takes.

        There are none before both sides were measured.
        """
        if not self.is_complete:
            return []
        found = [self.verdict(load) for load in LOADS]
        return [*found, *self.further_verdicts()] if self.cell.shape in DUMMIES else found

    def further_verdicts(self) -> list[Verdict]:
        """Return the verdicts that only dummies have."""
        loads = LOADS[:3] if self.contents.num_experts else LOADS[:1]
        readings = [(f"reading, {load.name}", 1 / share) for load in loads if (share := self.read_share(load))]
        beyond_s = statistics.median(self.loading_s[OURS]) - statistics.median(self.loading_s[THEIRS])
        loading = [
            ("loading beyond llama.cpp", beyond_s / self.contents.file_bytes * 1e9),
            ("memory beyond what stays", self.passing_bytes / 1e9),
        ]
        return [judge("cpu", f"GGUF, {name}", figure, str(self.cell)) for name, figure in (*readings, *loading)]

    @property
    def is_less_exact(self) -> bool:
        """Whether Quire is further from float32 than llama.cpp."""
        return self.quality is not None and self.quality["ours"] > self.quality["theirs"]

    def to_json(self) -> dict[str, object]:
        """Return everything, with what follows from it."""
        return {
            **self.cell._asdict(),
            "contents": self.contents._asdict(),
            "quality": self.quality,
            "read_bytes_per_second": self.read_rates,
            "distinct_experts": self.distinct,
            "step_bytes": {load.name: round(self.step_bytes(load)) for load in LOADS if load.num_steps},
            "loading_s": self.loading_s,
            "passing_bytes": self.passing_bytes,
            "tokens_per_second": {load.name: {side: self.values(side, load) for side in self.rates} for load in LOADS},
            "times": {
                load.name: {
                    "ratio": round(self.ratio(load), 3),
                    "required": self.verdict(load).limit.value,
                    "is_met": self.verdict(load).is_met,
                }
                for load in LOADS
                if self.is_complete
            },
            "verdicts": [str(verdict) for verdict in self.verdicts()],
        }


def required(cell: Cell, load: Load) -> Limit:
    """Return the required ratio."""
    rows, dummy = limits("cpu"), DUMMIES.get(cell.shape)
    kind = cell.format if dummy is None else "mixture" if dummy.is_mixture else "dense"
    return rows.get(f"GGUF, {kind}, {load.name}") or rows[f"GGUF, {load.name}"]


@dataclass(slots=True)
class Figures:
    """One run: the cells so far, what was left out and why, and what describes the run."""

    about: Mapping[str, object]
    cells: list[CellFigures] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Judge the complete cells by their limits."""
        return [verdict for figures in self.cells for verdict in figures.verdicts()]

    def to_json(self) -> dict[str, object]:
        """Return everything."""
        return {
            **self.about,
            "left_out": self.left_out,
            "commands": {side: command.replace(f"{Path.cwd()}/", "") for side, command in self.commands.items()},
            "cells": [figures.to_json() for figures in self.cells],
        }
