"""S0: what this GPU can do, which all percentages refer to."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from app.commands.measuring.machine import describe_run
from benchmarks.gpu.about import PACKAGES, gpu_state
from benchmarks.gpu.figures import COPY, PRODUCT, Figure
from benchmarks.gpu.tasks import Task
from benchmarks.gpu.timing import TURNS, Call, capture, event_seconds, replay_seconds

COPY_BYTES = 2 << 30
WIDTH = 8192
NODES = 1000
REPEATS = 15


@triton.jit
def _nothing(number):  # type: ignore[no-untyped-def]
    tl.static_assert(True)


def measure(task: Task) -> Iterator[Figure]:
    """Measure one of the ceilings; see Measures."""
    if task.row == "device":
        yield _device()
    elif task.row == "copy":
        yield Figure(COPY, "GB/s", copy_rates(COPY_BYTES), about={"bytes": COPY_BYTES, "gpu": gpu_state()})
    elif task.row == "product":
        yield Figure(PRODUCT, "TFLOP/s", product_rates(WIDTH), about={"width": WIDTH, "gpu": gpu_state()})
    else:
        yield Figure("graph node", "us", node_times(), about={"nodes": NODES, "gpu": gpu_state()})


def copy_rates(num_bytes: int, place: str = "cuda") -> tuple[float, ...]:
    """Return the GB/s that a copy reads and writes, both counted."""
    source = torch.empty(num_bytes // 4, dtype=torch.float32, device=place).normal_()
    target = torch.empty_like(source)
    target.copy_(source)
    return tuple(2 * num_bytes / _median(lambda: target.copy_(source)) / 1e9 for _ in range(TURNS))


def product_rates(width: int, place: str = "cuda") -> tuple[float, ...]:
    """Return the TFLOP/s of a square product of random bf16 matrices."""
    shape = (width, width)
    left, right = (torch.empty(shape, dtype=torch.bfloat16, device=place).normal_() for _ in range(2))
    out = torch.empty_like(left)
    torch.mm(left, right.t(), out=out)
    return tuple(2 * width**3 / _median(lambda: torch.mm(left, right.t(), out=out)) / 1e12 for _ in range(TURNS))


def node_times() -> tuple[float, ...]:
    """Return the microseconds of each of many empty kernels in a graph."""
    _nothing[(1,)](2)
    torch.cuda.synchronize()
    graph = capture(lambda: [_nothing[(1,)](2) for _ in range(NODES)])
    return tuple(statistics.median(replay_seconds(graph, REPEATS)) / NODES * 1e6 for _ in range(TURNS))


def _median(work: Call) -> float:
    for _ in range(3):
        work()
    return statistics.median(event_seconds(work) for _ in range(REPEATS))


def _device() -> Figure:
    properties = torch.cuda.get_device_properties(0)
    about = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "versions": describe_run(PACKAGES)["versions"],
        "gpu": gpu_state(),
        "note": f"{properties.name}, {properties.multi_processor_count} processors, CUDA {torch.version.cuda}",
    }
    return Figure("memory", "GiB", (properties.total_memory / 2**30,), about=about)
