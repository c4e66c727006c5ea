"""S7: NVIDIA's compute-sanitizer watches decode attention in one launch, where it is installed.

Its racecheck is not among the tools: it sees shared memory, and what the kernel shares between programs is in global
memory. For that there is S1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from app.kernels.triton.specializations import fix_cache_keys
from benchmarks.gpu.cases import BLOCK_SIZE
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.stress import HEADS, Sizes, stress
from benchmarks.gpu.tasks import CannotMeasure, Task

SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/extras/compute-sanitizer/compute-sanitizer")
SMALL_CASES = 2
SPARE_S = 2.0
STRESS_S = 100.0  # a kernel under it takes a hundred times as long


def measure(task: Task) -> Iterator[Figure]:
    """Let one of its tools watch; see Measures."""
    yield sanitize(task.row, find_sanitizer(), task.deadline)


def find_sanitizer() -> str | None:
    """Return where compute-sanitizer is; None if it is not."""
    found = shutil.which("compute-sanitizer")
    return found or next((path for path in SANITIZERS if Path(path).exists()), None)


def sanitize(tool: str, sanitizer: str | None, deadline: float) -> Figure:
    """Return the errors that a tool of compute-sanitizer finds in two small cases.

    Raises:
        CannotMeasure: it is not installed, or takes too long.
        RuntimeError: it cannot run.
    """
    if sanitizer is None:
        raise CannotMeasure("compute-sanitizer is not installed here")
    command = [sanitizer, "--tool", tool, sys.executable, "-m", "benchmarks.gpu.sanitizer"]
    seconds = max(1.0, deadline - SPARE_S - time.monotonic())
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"compute-sanitizer was not done within {seconds:.0f} s") from None
    said = done.stdout + done.stderr
    print(said, file=sys.stderr)
    return Figure(
        tool, "errors", (float(num_errors(said)),), about={"said": said[-1000:], "note": f"{SMALL_CASES} cases"}
    )


def num_errors(said: str) -> int:
    """Return the number of errors in the summary of compute-sanitizer.

    Raises:
        RuntimeError: there is no summary.
    """
    for line in said.splitlines():
        _, is_summary, rest = line.partition("ERROR SUMMARY: ")
        if is_summary:
            return int(rest.split()[0])
    raise RuntimeError(f"compute-sanitizer printed no summary: {said[-500:]}")


def main() -> int:
    """Run two small cases, for compute-sanitizer to watch."""
    fix_cache_keys()
    sizes = Sizes(max_rows=4, max_context=40 * BLOCK_SIZE)
    figure = stress(torch.device("cuda"), SMALL_CASES, HEADS[:1], sizes, time.monotonic() + STRESS_S)
    return int(figure.median > 0)


if __name__ == "__main__":
    sys.exit(main())
