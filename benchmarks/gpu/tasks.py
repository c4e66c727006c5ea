"""What a section's process and the modules that measure agree on. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.gpu.figures import Figure, Results


class Task(NamedTuple):
    """A row to measure: its name, a folder to write to, what earlier sections found, until when (monotonic)."""

    row: str
    folder: Path
    known: Results
    deadline: float


class CannotMeasure(Exception):
    """A row cannot be measured here, though nothing failed: this is reported, and not retried."""


class Measures(Protocol):
    """What the module of a section has; and `LEAVES_THREADS`, rows behind which a process is not used again."""

    def measure(self, task: Task) -> Iterator[Figure]:
        """Measure a row; each figure is kept as soon as it is yielded."""
