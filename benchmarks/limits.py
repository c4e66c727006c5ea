"""What is required of Quire in each benchmark (`limits.toml`), and whether it was met."""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("limits.toml")
EXIT_MISSED = 1
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "less_than": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What one figure must be: `sign` (one of SIGNS) and value; a share is written in per cent.

    `stretch` is a further goal, which is reported and never missed.
    """

    name: str
    sign: str
    value: float
    unit: str
    why: str
    stretch: float | None = None

    def allows(self, figure: float) -> bool:
        """Whether a figure is as it must be."""
        return SIGNS[self.sign](figure, self.value)

    def text(self, figure: float) -> str:
        """Write a figure in the limit's unit."""
        value, unit = (100 * figure, "%") if self.unit == "share" else (figure, self.unit)
        return f"{value:,.0f} {unit}".rstrip() if abs(value) >= 1000 else f"{value:.4g} {unit}".rstrip()

    def __str__(self) -> str:
        return f"{self.sign.replace('_', ' ')} {self.text(self.value)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure held against its limit.

    Attributes:
        what: of which part of the benchmark it is a figure, where the limit is that of several.
        excuse: why the figure is not judged; empty if it is.
    """

    limit: Limit
    figure: float
    what: str = ""
    excuse: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the figure is as it must be."""
        return self.limit.allows(self.figure)

    @property
    def is_missed(self) -> bool:
        """Whether it is not, and is judged."""
        return not (self.is_met or self.excuse)

    @property
    def stretch(self) -> str:
        """Whether the further goal is reached, in words; empty if there is none."""
        goal = self.limit.stretch
        if goal is None:
            return ""
        reached = SIGNS[self.limit.sign](self.figure, goal)
        return f"stretch {self.limit.text(goal)}: {'reached' if reached else 'not reached'}"

    def __str__(self) -> str:
        limit = self.limit
        name = ": ".join(filter(None, (self.what, limit.name)))
        word = self.excuse or ("met" if self.is_met else f"MISSED by {limit.text(abs(self.figure - limit.value))}")
        return "; ".join(filter(None, (f"{name} is {limit.text(self.figure)}, {limit}: {word}", self.stretch)))


@cache
def limits(benchmark: str) -> Mapping[str, Limit]:
    """Return the limits of a benchmark by their names."""
    rows: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))[benchmark]
    common = {name: rows.pop(name, "") for name in ("unit", "why")}
    return {name: _limit(name, common | row) for name, row in rows.items()}


def judge(benchmark: str, name: str, figure: float, what: str = "") -> Verdict:
    """Hold a figure against a limit of a benchmark."""
    return Verdict(limits(benchmark)[name], figure, what)


def conclude(verdicts: Iterable[Verdict], faults: Iterable[str] = ()) -> int:
    """Print what was missed, and what else is wrong; return the exit code of the benchmark."""
    missed = [*(str(verdict) for verdict in verdicts if verdict.is_missed), *faults]
    for line in missed:
        print(f"missed: {line}", flush=True)
    return EXIT_MISSED if missed else 0


def _limit(name: str, row: Mapping[str, Any]) -> Limit:
    ((sign, value),) = [(sign, row[sign]) for sign in SIGNS if sign in row]
    return Limit(name, sign, float(value), row["unit"], row["why"], row.get("stretch"))
