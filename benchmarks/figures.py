"""The folder of the results of benchmarks, and how results are written."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from app.loadgen.table import number

RESULTS = Path(__file__).parent / "results"


def write_json(file: Path, found: object) -> None:
    """Write a JSON file atomically; its folder is created."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(file)


def spread(values: Sequence[float]) -> str:
    """Return the median of values with the lowest and the highest; of one value only that; of none a dash."""
    if not values:
        return "-"
    median = number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({number(min(values))}-{number(max(values))})"
