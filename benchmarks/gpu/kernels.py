"""S2: single kernels, against bandwidth and matrix speed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import cast

import torch

from benchmarks.gpu.about import gpu_state
from benchmarks.gpu.cases import Case, CaseModule
from benchmarks.gpu.engines import give_memory_back
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.tasks import CannotMeasure, Task
from benchmarks.gpu.timing import time_calls

SEED = 0
SPARE_S = 1.0
MAX_FAILURES = 3  # one after another: then the kernel is given up, for each may take seconds to compile
MAX_SAID = 600


def measure(task: Task) -> Iterator[Figure]:
    """Measure all cases of a kernel; see Measures."""
    module = cast("CaseModule", import_module(f"benchmarks.gpu.kernel_cases.{task.row}"))
    yield from measure_cases(task.row, module.cases(), torch.device("cuda"), task.deadline)


def measure_cases(operation: str, cases: Iterable[Case], place: torch.device, deadline: float) -> Iterator[Figure]:
    """Yield a figure for each case while there is time.

    Raises:
        CannotMeasure: there was no time for some.
        RuntimeError: some of them failed; what they said.
    """
    failures, clocks, num_running = list[str](), gpu_state(), 0
    for case in cases:
        if time.monotonic() > deadline - SPARE_S:
            failures.append(f"no time was left from {case.name} on")
            raise CannotMeasure("; ".join(failures))
        torch.manual_seed(SEED)
        try:
            seconds = time_calls(case.setup(place))
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}"[:MAX_SAID])
            give_memory_back()  # raises where the GPU cannot go on
            num_running += 1
            if num_running == MAX_FAILURES:
                break
            continue
        num_running = 0
        give_memory_back()
        about = {"operation": operation, "by": "quire", **case.about, "gpu": clocks}
        if case.work.num_bytes and (not case.work.operations or "rate" in case.about):
            about["note"] = f"{case.work.num_bytes / min(seconds) / 1e9:,.0f} GB/s"
        yield Figure(f"{operation} {case.name}", "us", tuple(1e6 * each for each in seconds), (case.work,), about=about)
    if failures:
        raise RuntimeError("; ".join(failures))
