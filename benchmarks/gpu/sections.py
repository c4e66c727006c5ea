"""The sections of the benchmark `gpu` in the order of their value: rows, and how long each may take. No torch.

A row is started and abandoned as a unit; it may give several figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CONTINUOUS = "transformers continuous batching"
ONE_BY_ONE = "transformers generate, one by one"
STREAMS = "256 streams"
REQUESTS = "256 requests"
UNIFORM = "256 x 1024/1024"
FLAGSHIP, SMALL = "Llama-3.1-8B", "Qwen3-0.6B"
PLAIN = "plain launches"
QUESTIONS = {
    "launches": 15, "layer": 20, "splits": 70, "mixed step": 30, "deterministic": 30, "long prefix": 20, "LM head": 30,
}  # fmt: skip
"""What the sweep asks, and the most seconds for it: each number of splits is compiled, which takes two."""


class Row(NamedTuple):
    """What is measured in one go, and the most seconds for it."""

    name: str
    cap_s: float


class Section(NamedTuple):
    """Rows that share a process while none of them fails; `module` measures them."""

    name: str
    title: str
    cap_s: float
    module: str
    rows: tuple[Row, ...]


def _rows(cap_s: float, *names: str) -> tuple[Row, ...]:
    return tuple(Row(name, cap_s) for name in names)


SECTIONS = (
    Section("S0", "ceilings of this GPU", 20, "ceilings", _rows(18, "device", "copy", "product", "node")),
    Section(
        "S3",
        "decode, time per token at a context of 1k",
        100,
        "decode",
        _rows(40, SMALL, FLAGSHIP, "Llama-3.2-1B", "Qwen3-4B", "Qwen3-14B", f"{SMALL}, {PLAIN}"),
    ),
    Section(
        "S4",
        "offline throughput",
        300,
        "offline",
        (
            *_rows(60, f"{SMALL}, {REQUESTS}", f"{FLAGSHIP}, {REQUESTS}", f"Qwen3-8B, {UNIFORM}"),
            Row(f"{SMALL}, {CONTINUOUS}", 60),
            Row(f"{SMALL}, {ONE_BY_ONE}", 30),
            *_rows(60, f"{FLAGSHIP}, {REQUESTS}, deterministic"),
            *_rows(40, *(f"{SMALL}, {REQUESTS}, run-ahead {depth}" for depth in (0, 1, 3))),
            *_rows(60, f"{SMALL}, {REQUESTS}, eager", f"Qwen3-4B, {REQUESTS}", f"{FLAGSHIP}, {REQUESTS}, fp8 KV"),
        ),
    ),
    Section(
        "S1",
        "decode attention in one launch, under stress",
        40,
        "stress",
        _rows(38, "ragged batches"),
    ),
    Section(
        "S2",
        "kernels",
        90,
        "kernels",
        (
            Row("prefill_attention", 15),
            Row("decode_attention", 40),
            *_rows(20, "piece_attention", "matmul", "matvec", "sample", "norm", "rotate", "gate"),
            *_rows(10, "softcap", "penalties", "logprobs", "rows", "blocks"),
        ),
    ),
    Section("S5", "serving", 120, "serving", (Row(FLAGSHIP, 80), Row(SMALL, 40))),
    Section("S6", "questions of design", 150, "sweep", tuple(Row(*each) for each in QUESTIONS.items())),
    # Last: importing torch takes these tools longer than the kernels do. (racecheck sees shared memory only.)
    Section("S7", "compute-sanitizer", 250, "sanitizer", _rows(120, "memcheck", "synccheck")),
)

# Before all sections: kernels are compiled by one process for each of these, all at once, with models of one layer. The
# sections then find them in Triton's cache.
WARM_UP = Section(
    "W",
    "kernels compiled",
    60,
    "warm_up",
    (
        *_rows(60, SMALL, FLAGSHIP, "Llama-3.2-1B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B"),
        *_rows(60, f"{FLAGSHIP}, deterministic", f"{FLAGSHIP}, fp8 KV"),
    ),
)

BUDGET_S = WARM_UP.cap_s + sum(section.cap_s for section in SECTIONS)
"""So that nothing is left out for want of time."""


def find_section(name: str) -> Section:
    """Return a section by its name."""
    return next(section for section in (*SECTIONS, WARM_UP) if section.name == name)


def with_rows(section: Section, names: Sequence[str]) -> Section:
    """Return a section with some of its rows only."""
    return section._replace(rows=tuple(row for row in section.rows if row.name in names))
