"""S6: the questions whose answers decide the design: splits, empty programs, dependent launches, the LM head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.kernels import measure_cases
from benchmarks.gpu.sweep_cases import attention, launches, products
from benchmarks.gpu.tasks import Task

CASES: Mapping[str, Callable[[], Iterator[Case]]] = {
    "launches": launches.chains,
    "layer": products.layers,
    "splits": attention.splits,
    "mixed step": attention.mixed_steps,
    "deterministic": attention.orders,
    "long prefix": attention.prefixes,
    "LM head": products.heads,
}


def measure(task: Task) -> Iterator[Figure]:
    """Measure all that a question compares; see Measures."""
    yield from measure_cases(task.row, CASES[task.row](), torch.device("cuda"), task.deadline)
