"""Busy processes run for the time of their block, and verdicts name what is too slow."""

import os
import sys

import pytest

from benchmarks.busy_process import AFTER, BESIDE, QUIET, busy_processes, verdicts_of
from benchmarks.cpu.cells import OURS, Cell

CELL = Cell("s135", "bf16", 8)


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_there_is_a_busy_process_per_core_during_the_block():
    before = children()
    with busy_processes([0, 0]):
        assert len(children() - before) == 2
    assert children() == before


@pytest.mark.parametrize(
    ("beside", "after", "vllm", "missed"),
    [(45, 100, 40, []), (44, 100, 40, [BESIDE]), (45, 89, 40, [AFTER]), (45, 100, 46, ["vLLM"])],
)
def test_missed_rates_are_named(beside: float, after: float, vllm: float, missed: list[str]):
    rates = {(OURS, QUIET): [100.0], (OURS, BESIDE): [beside], (OURS, AFTER): [after]}
    rates |= {("vLLM", QUIET): [90.0], ("vLLM", BESIDE): [vllm], ("vLLM", AFTER): [90.0]}
    lines = [str(verdict) for verdict in verdicts_of(CELL, rates) if verdict.is_missed]
    assert len(lines) == len(missed) and all(name in line for name, line in zip(missed, lines, strict=True))
