"""Compile the GPU kernels without a GPU, and check their machine code.

    python -m tests.kernels.triton.compile_kernels [--arch 90] [--all] [--jobs 2]

Writes one JSON line per kernel, architecture and configuration: seconds, registers, bytes of shared memory, counts of
instructions, and the failed checks. Exits with 1 if a check failed. The checks: it compiles; no register is spilled;
the shared memory fits; tensor cores and asynchronous copies are used if the table requires them; for GPUs with
dependent launches, all that precedes the wait for the kernel before (see app/kernels/triton/dependent.py).
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported, otherwise it interprets the kernels

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from app.config.devices import MIN_DEPENDENT_CAPABILITY
from app.kernels.triton.dependent import launches
from tests.kernels.triton.compile_sweep import sweep
from tests.kernels.triton.compile_table import PREFETCHES, SHARED_LIMITS, TABLE, Configuration, failures
from tests.kernels.triton.machine_code import before_wait

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# Counted in the machine code by the beginning of the instruction. LDL and STL access local memory: spilled registers.
INSTRUCTIONS = {
    "hmma": "HMMA", "hgmma": "HGMMA", "ldgsts": "LDGSTS", "cctl.e.pf2": PREFETCHES, "spill_loads": "LDL",
    "spill_stores": "STL",
}  # fmt: skip


class Driver:
    """Replaces the driver of a GPU; every architecture is a device."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        """The architecture."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """Any stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """The target of the compiler."""
        return GPUTarget("cuda", self.arch, 32)


def compile_configuration(configuration: Configuration, arch: int) -> list[dict]:
    """Compile the kernels that the configuration's call launches; return a report per kernel."""
    reports = []
    run = JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **kwargs):
        start = time.perf_counter()
        compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        name = f"{kernel.module.rpartition('.')[2]}.{kernel.__name__}"
        reports.append({
            "configuration": configuration.name, "kernel": name, "arch": arch,
            "seconds": round(time.perf_counter() - start, 2), "warps": compiled.metadata.num_warps,
            "stages": compiled.metadata.num_stages, "shared": compiled.metadata.shared,
            **machine_code(compiled.asm["cubin"]),
        })  # fmt: skip
        return compiled

    triton.runtime.driver.set_active(Driver(arch))
    JITFunction.run = compile_only
    problem = None
    try:
        with launches(is_dependent=divmod(arch, 10) >= MIN_DEPENDENT_CAPABILITY):
            configuration.call(arch)
    except Exception as error:
        problem = f"does not compile: {type(error).__name__}: {error}"
    finally:
        JITFunction.run = run
    launched = tuple(report["kernel"] for report in reports)
    if problem is None and launched != configuration.kernels:
        problem = f"launches {launched} instead of {configuration.kernels}"
    for report in reports:
        report["failures"] = failures(report, configuration)
    if problem:
        reports.append({"configuration": configuration.name, "kernel": "", "arch": arch, "failures": [problem]})
    return reports


def machine_code(cubin: bytes) -> dict[str, object]:
    """Registers, how often each of INSTRUCTIONS occurs, and what is not allowed before the wait."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([CUOBJDUMP, option, file.name], check=True, capture_output=True, text=True).stdout
            for option in ("--dump-resource-usage", "--dump-sass")
        )
    counts = {key: len(re.findall(rf"\b{re.escape(name)}\b", code)) for key, name in INSTRUCTIONS.items()}
    return {"registers": int(re.search(r"REG:(\d+)", usage)[1]), **counts, "before_wait": before_wait(code)}


def _compile_job(job: tuple[int, int, bool]) -> list[dict]:
    """Compile by number: calls cannot be sent to another process."""
    number, arch, everything = job
    return compile_configuration(configurations(everything)[number], arch)


def configurations(everything: bool) -> list[Configuration]:
    """The table, or all configurations."""
    return [*TABLE, *sweep()] if everything else TABLE


def main() -> int:
    """Compile, report, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compile the GPU kernels without a GPU.")
    parser.add_argument("--arch", type=int, choices=sorted(SHARED_LIMITS), help="compute capability; default: all")
    parser.add_argument("--all", action="store_true", help="every configuration, not only the table")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    jobs = [
        (number, arch, options.all)
        for number, configuration in enumerate(configurations(options.all))
        for arch in configuration.architectures
        if options.arch in (None, arch)
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # also for the processes: kernels are compiled even if they are cached
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            for done, reports in enumerate(pool.map(_compile_job, jobs), 1):
                for report in reports:
                    print(json.dumps(report), flush=True)
                    failed += bool(report["failures"])
                print(f"{done}/{len(jobs)} {reports[-1]['configuration']}", file=sys.stderr)
    print(f"{failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
