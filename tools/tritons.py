"""Compile the GPU kernels with other Tritons as well: `python -m tools.tritons [VERSION ...] [--all] [--arch 90]`.

The tests pin one Triton; torch for GPUs brings the one that it was built with. Each version is installed into a folder
of its own before .venv on the path, and compiles the table of tests/kernels/triton. Printed are registers, shared
memory and spilled registers where they differ from those of the pinned one. Exit code 1 if a kernel fails a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("3.7.1",)
"""What torch 2.13 for CUDA brings."""
COMPARED = ("registers", "shared", "spill_loads", "spill_stores")
# Registers that a version spills outside of loops, where the pinned one spills none: accesses to local memory, by
# version, architecture and kernel. More are a failure.
KNOWN_SPILLS = {
    "3.7.1": {
        (90, "sample._sample_blocks_kernel"): 2,
        (80, "sample._sample_blocks_kernel"): 4,
        (80, "norm._wide_rms_norm_kernel"): 2,
    }
}

Report = Mapping[str, Any]
Reports = dict[tuple[str, str, int], Report]


def main() -> int:
    """Compile with each, compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=OTHERS, metavar="VERSION", help=f"default {' '.join(OTHERS)}")
    parser.add_argument("--all", action="store_true", help="every configuration, not only the table")
    parser.add_argument("--arch", type=int, help="compute capability; default: all")
    options = parser.parse_args()
    arguments = ["--all"] if options.all else []
    arguments += [] if options.arch is None else ["--arch", str(options.arch)]
    pinned = compile_with(None, arguments)
    problems = list(failures(version("triton"), pinned))
    for other in options.versions:
        with tempfile.TemporaryDirectory(prefix="quire-triton-") as folder:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
            subprocess.run([*pip, "install", "--no-deps", "--target", folder, f"triton=={other}"], check=True)
            found = compile_with(Path(folder), arguments)
        print(f"Triton {other} beside {version('triton')}: {len(found)} kernels")
        print("\n".join(differences(pinned, found)))
        problems += failures(other, found)
    print("\n".join(problems) or "all pass the gates, known spills aside")
    return int(bool(problems))


def compile_with(folder: Path | None, arguments: Sequence[str]) -> Reports:
    """Return the reports of the kernels, compiled with the Triton in a folder, or with the installed one.

    Raises:
        RuntimeError: it did not come to an end.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "LD_PRELOAD")}
    if folder is not None:
        environ["PYTHONPATH"] = str(folder)
    command = [sys.executable, "-m", "tests.kernels.triton.compile_kernels", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode not in (0, 1) or not reports:
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}")
    return {(each["configuration"], each["kernel"], each["arch"]): each for each in reports}


def differences(pinned: Reports, found: Reports) -> Iterator[str]:
    """Yield a line for each kernel that is not compiled to the same registers, shared memory and spills."""
    for key, report in found.items():
        before = pinned.get(key, {})
        changes = [
            f"{name} {before[name]} -> {report[name]}"
            for name in COMPARED
            if name in before and name in report and before[name] != report[name]
        ]
        if changes:
            configuration, kernel, arch = key
            yield f"  sm_{arch} {kernel} ({configuration}): {', '.join(changes)}"


def failures(triton: str, reports: Reports) -> Iterator[str]:
    """Yield what fails a gate with a Triton, known spills left out."""
    for (configuration, kernel, arch), report in reports.items():
        allowed = KNOWN_SPILLS.get(triton, {}).get((arch, kernel), 0)
        spilled = report.get("spill_loads", 0) + report.get("spill_stores", 0)
        found = [said for said in report["failures"] if not (said.startswith("spills") and spilled <= allowed)]
        if found:
            yield f"Triton {triton}, sm_{arch}, {configuration}: {kernel} {'; '.join(found)}"


if __name__ == "__main__":
    sys.exit(main())
