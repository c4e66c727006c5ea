"""The figures of `cpu --gguf`: every single value, what follows from them, and their JSON. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Cell, Load
from benchmarks.cpu.gguf.files import Contents
from benchmarks.cpu.gguf.sides import THEIRS, Rates
from benchmarks.limits import Limit, Verdict, limits

Quality = Mapping[str, float]
"""The fields of `quality.Quality`."""


@dataclass(slots=True)
class CellFigures:
    """What was measured of one cell: rates of each side by turns, and the machine's reading before each turn."""

    cell: Cell
    contents: Contents
    quality: Quality | None = None
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    read_rates: list[float] = field(default_factory=list)

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

    def read_share(self, load: Load) -> float | None:
        """Return the share of the machine's reading that the matrices alone take; None for a prompt."""
        if not load.num_steps or not self.values(OURS, load):
            return None
        steps_per_second = statistics.median(self.values(OURS, load)) / load.batch
        return steps_per_second * self.contents.matrix_bytes / statistics.median(self.read_rates)

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
        }


def required(cell: Cell, load: Load) -> Limit:
    """Return the required ratio."""
    rows = limits("cpu")
    return rows.get(f"GGUF, {cell.format}, {load.name}") or rows[f"GGUF, {load.name}"]


@dataclass(slots=True)
class Figures:
    """One run: the cells so far, what was left out and why, and what describes the run."""

    about: Mapping[str, object]
    cells: list[CellFigures] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Judge the complete cells by their limits."""
        return [figures.verdict(load) for figures in self.cells if figures.is_complete for load in LOADS]

    def to_json(self) -> dict[str, object]:
        """Return everything."""
        return {
            "benchmark": "cpu --gguf",
            **self.about,
            "left_out": self.left_out,
            "commands": {side: command.replace(f"{Path.cwd()}/", "") for side, command in self.commands.items()},
            "cells": [figures.to_json() for figures in self.cells],
        }
