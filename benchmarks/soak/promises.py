"""The promises of docs/reliability.md that are tested before the soak, each by its tests or its benchmark."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from app.runtime.clock import monotonic
from benchmarks.side import ROOT, last_line

MAX_S = 3600.0


class Promise(NamedTuple):
    """A promise, and the arguments of `python -m` for what tests it."""

    what: str
    tested_by: tuple[str, ...]

    @property
    def named(self) -> str:
        """What tests it, as docs/reliability.md names it."""
        module, *arguments = self.tested_by
        if module == "benchmarks":
            return f"`python -m {' '.join(self.tested_by)}`"
        return ", ".join(f"`{name}`" for name in arguments if name.startswith("tests/"))


def _tests(*names: str) -> tuple[str, ...]:
    # With all marks: the slow ones are part of the promise.
    return ("pytest", "-q", "-p", "no:cacheprovider", "-m", "", *(f"tests/{name}" for name in names))


def _benchmark(*arguments: str) -> tuple[str, ...]:
    return ("benchmarks", *arguments)


PROMISES: Mapping[str, Promise] = {
    "R1": Promise("2,000 streams are open at once", _benchmark("streams", "--only", "both", "--seconds", "60")),
    "R2": Promise("five times as many requests as the server can answer", _benchmark("overload")),
    "R3": Promise("clients that read slowly, or never", _benchmark("streams", "--only", "slow")),
    "R4": Promise("10,000 clients that disconnect", _benchmark("resets")),
    "R5": Promise("a fault in each of 200 steps", _tests("chaos/test_every_step.py")),
    "R6": Promise("an engine that hangs", _tests("server/test_watchdog.py")),
    "R7": Promise("KV memory for one request, and 64 requests", _tests("engine/test_memory.py")),
    "R8": Promise("many preemptions", _tests("regressions/test_preemption_thrash.py", "simulation")),
    "R9": Promise("SIGTERM beside 50 streams", _tests("e2e/test_drain.py")),
    "R10": Promise("kill -9 beside resumable answers", _benchmark("chaos", "--points", "16")),
    "R11": Promise("500 clients of a server that may open 128 files", _benchmark("open_files")),
    "R12": Promise(
        "too little memory at the start, and in a step",
        _tests("server/test_serve.py::test_too_little_memory_exits_with_75", "engine/test_recovery.py"),
    ),
    "R13": Promise("300,000 requests leave nothing", _benchmark("growth")),
    "R14": Promise(
        "a disk that is full, a log that nobody reads, a clock that jumps",
        _tests("streaming/kept/test_journaling.py", "journal", "observe/test_log_writer.py", "simulation"),
    ),
    "R17": Promise(
        "equal logits in any batch and after preemption, equal answers after a restart",
        _tests("engine/test_equal_bits.py", "server/test_journal_kills.py"),
    ),
}


class Checked(NamedTuple):
    """Whether a promise is kept, when that was tested and how long it took, and the last line that was printed."""

    is_kept: bool
    started: str
    seconds: float
    says: str


def check_all(promises: Mapping[str, Promise]) -> dict[str, Checked]:
    """Test one promise after the other, and print each. Blocks."""
    found = {}
    for name, promise in promises.items():
        print(f"{name}, {promise.what}: ", end="", flush=True)
        found[name] = checked = check(promise)
        print(f"{'kept' if checked.is_kept else 'FAILED'} ({checked.seconds:.0f} s; {checked.says})", flush=True)
    return found


def check(promise: Promise) -> Checked:
    """Test a promise. Blocks."""
    began, started = monotonic(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with tempfile.NamedTemporaryFile(prefix="quire-check-") as file:
        command = [sys.executable, "-m", *promise.tested_by]
        try:
            code = subprocess.run(command, stdout=file, stderr=file, cwd=ROOT, timeout=MAX_S).returncode
        except subprocess.TimeoutExpired:
            return Checked(False, started, MAX_S, "it took too long")
        return Checked(code == 0, started, round(monotonic() - began, 1), last_line(Path(file.name)))
