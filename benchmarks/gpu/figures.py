"""Measured values with their unit and settings, and the JSON of a section and of a run. No torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.bounds import H200, Ceilings, Work, seconds

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of time; of everything else more is better."""

COPY, PRODUCT = "copy", "bf16 product"
"""The figures of S0 that all percentages refer to."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: every value that was measured, and what it was measured with.

    `work` is what cannot be avoided, for one value of a time; `amount` of what a rate counts (tokens) it takes that.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    work: tuple[Work, ...] = ()
    amount: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.unit in SECONDS

    def limit(self, ceilings: Ceilings) -> float | None:
        """The best that the GPU allows, in the figure's unit; None where nothing is known."""
        least = seconds(self.work, ceilings)
        if not least:
            return None
        return least / SECONDS[self.unit] if self.is_time else self.amount / least

    def share(self, ceilings: Ceilings) -> float | None:
        """The median as a share of the limit; 1 is all that the GPU allows."""
        limit = self.limit(ceilings)
        if limit is None:
            return None
        return limit / self.median if self.is_time else self.median / limit

    @property
    def seconds(self) -> float:
        """The median of a time, in seconds."""
        return self.median * SECONDS[self.unit]

    @property
    def operations_rate(self) -> float | None:
        """Operations per second of a time; None where none are counted."""
        operations = sum(part.operations for part in self.work)
        return operations / self.seconds if operations and self.is_time else None

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "values": list(self.values),
            "work": [part._asdict() for part in self.work],
            "amount": self.amount,
            "about": dict(self.about),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Figure:
        """Read the record that `to_json` has made."""
        return cls(
            found["name"],
            found["unit"],
            tuple(found["values"]),
            tuple(Work(**part) for part in found["work"]),
            found["amount"],
            found["about"],
        )


@dataclass(slots=True)
class SectionResult:
    """One section: what it measured, which rows failed and which were left out, and why."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "section": self.name,
            "seconds": round(self.seconds, 1),
            "figures": [figure.to_json() for figure in self.figures],
            "failures": self.failures,
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SectionResult:
        """Read the record that `to_json` has made."""
        figures = [Figure.from_json(each) for each in found["figures"]]
        return cls(found["section"], figures, found["failures"], found["left_out"], found["seconds"])


@dataclass(slots=True)
class Results:
    """One run: what describes it, and the sections so far."""

    about: Mapping[str, Any] = field(default_factory=dict)
    sections: dict[str, SectionResult] = field(default_factory=dict)

    def figure(self, section: str, name: str) -> Figure | None:
        """Return a figure by its name; None if it was not measured."""
        figures = self.sections[section].figures if section in self.sections else []
        return next((figure for figure in figures if figure.name == name), None)

    def value(self, section: str, name: str) -> float | None:
        """Return a figure's median; None if it was not measured."""
        figure = self.figure(section, name)
        return None if figure is None else figure.median

    @property
    def ceilings(self) -> Ceilings:
        """The speed that was measured of the GPU in this run, else that of an H200."""
        copy, product = self.value("S0", COPY), self.value("S0", PRODUCT)
        return Ceilings(
            H200.bandwidth if copy is None else copy * 1e9, H200.operations if product is None else product * 1e12
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        sections = [section.to_json() for section in self.sections.values()]
        return {"benchmark": "gpu", **self.about, "sections": sections}

    @classmethod
    def load(cls, file: Path) -> Results:
        """Read what a run has written so far; empty if there is nothing."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            return cls()
        sections = [SectionResult.from_json(each) for each in found["sections"]]
        return cls({}, {section.name: section for section in sections})
