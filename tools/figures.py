"""Writes the CPU table of docs/benchmarks.md from benchmarks/results/cpu.json: `python -m tools.figures`.

A test compares the page with the output of this module.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cpu.cells import KINDS, OURS

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "results" / "cpu.json"
BEGIN, END = "<!-- Made by `make docs` from benchmarks/results/cpu.json; do not edit. -->\n", "<!-- made: end -->\n"
PEERS = ("llama.cpp", "vLLM")


def cpu_table(found: Mapping[str, Any]) -> str:
    """Return the decode and prefill rates of each cell, and the mixed load, as Markdown."""
    head = ["model", "batch"]
    for kind in KINDS:
        head += [f"{kind}: {OURS}", *PEERS, "times the best (required)"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    lines += [_row([f"{cell['shape']} {cell['format']}", str(cell["batch"]), *_rates(cell)]) for cell in found["cells"]]
    return "\n".join([*lines, "", *_mixed(found["mixed_load"])]) + "\n"


def with_table(page: str, table: str) -> str:
    """Return the page with the table between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


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
    """Write the table into the page."""
    table = cpu_table(json.loads(RESULTS.read_text()))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    print("wrote the CPU table of docs/benchmarks.md")


if __name__ == "__main__":
    main()
