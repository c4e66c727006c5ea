"""Writes tables of docs/benchmarks.md and the pictures of benchmarks/results, from the JSON files there.

`python -m tools.figures`. A test compares the page with the output of this module.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.loadgen import plots
from benchmarks.cpu.cells import KINDS, OURS
from benchmarks.cpu.chart import chart as cpu_chart
from benchmarks.figures import RESULTS
from benchmarks.isolation.report import markdown as isolation_table
from benchmarks.memory_chart import chart as memory_chart
from benchmarks.streams.chart import chart as streams_chart
from tools.marked_part import with_part

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- Made by `make docs` from benchmarks/results/{}.json; do not edit. -->\n"
PEERS = ("llama.cpp", "vLLM")


def cpu_table(found: Mapping[str, Any]) -> str:
    """Return the decode and prefill rates of each cell, and the mixed load, as Markdown."""
    head = ["model", "batch"]
    for kind in KINDS:
        head += [f"{kind}: {OURS}", *PEERS, "times the best (required)"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    lines += [_row([f"{cell['shape']} {cell['format']}", str(cell["batch"]), *_rates(cell)]) for cell in found["cells"]]
    return "\n".join([*lines, "", *_mixed(found["mixed_load"])]) + "\n"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"cpu": cpu_table, "isolation": isolation_table}
"""By the names of the results that they are made from."""


def with_table(page: str, name: str, table: str) -> str:
    """Return the page with the table of some results between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    return with_part(page, BEGIN.format(name), table)


def _rates(cell: Mapping[str, Any]) -> Iterator[str]:
    for kind in KINDS:
        for side in (OURS, *PEERS):
            rates = cell["tokens_per_second"].get(side)
            yield f"{statistics.median(rates[kind]):,.0f}" if rates else "-"
        verdict = cell["verdicts"][kind]
        required = f" ({verdict['required']:g})" if verdict and verdict["required"] else ""
        yield f"{verdict['ratio']:.2f}{required}" if verdict else "-"


def _mixed(mixed: Mapping[str, Any]) -> Iterator[str]:
    for side, rates in mixed["tokens_per_second"].items():
        verdict = mixed["verdicts"].get(side)
        ratio = f", Quire is {verdict['ratio']:.2f} times as fast" if verdict else ""
        yield f"- 32 requests of mixed lengths, s135 bf16: {side} {statistics.median(rates):,.0f} tokens/s{ratio}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the tables into the page, and the pictures."""
    names = ("cpu", "isolation", "streams", "memory")
    found = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in names}
    page = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        page = with_table(page, name, make(found[name]))
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {len(TABLES)} tables of docs/benchmarks.md")
    pictures = {
        "cpu": cpu_chart(found["cpu"]),
        "streams": streams_chart(found["streams"]),
        "memory": memory_chart(found["memory"]["figures"]),
    }
    for name, picture in pictures.items():
        plots.save(picture, RESULTS / f"{name}.svg")
    print(plots.written(*(RESULTS / f"{name}.svg" for name in pictures)))


if __name__ == "__main__":
    main()
