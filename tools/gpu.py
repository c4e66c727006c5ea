"""What a machine with a GPU is asked, in parts of less than ten minutes each: `python -m tools.gpu 1 2 3`.

1. The tests of tests/gpu, some quick ones first, then the questions of design (S6 of the benchmark `gpu`).
2. The headline: offline and served throughput.
3. Decode steps, the race test, single kernels, compute-sanitizer; quicker behind part 2, which has compiled much of it.

The machine brings its Python, with torch; what else is missing comes from a folder of wheels (`python -m
tools.gpu_wheels`), else from pip's index, into .gpu. What needs no device is done before one is asked for, so a part
can be rehearsed anywhere: packages are installed, modules imported, tests collected. Exit codes: 0, 1 where something
failed, 75 where there is no GPU. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer
from typing import NamedTuple

from tools.gpu_python import CannotRun, make_python

ROOT = Path(__file__).resolve().parents[1]
CANNOT_START = 75
WORKERS = min(10, len(os.sched_getaffinity(0)))  # each has a CUDA context of half a GiB
LIMIT_S = 600.0
REHEARSAL_S = 120.0
TELLING_S = 10.0
FOUND_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


class Step(NamedTuple):
    """A command behind the Python, its most seconds; `is_first`: where nothing of it passes, the part is over."""

    name: str
    arguments: tuple[str, ...]
    cap_s: float
    is_first: bool = False


class Part(NamedTuple):
    """Steps for one visit to a machine, and modules that they import in processes of their own."""

    steps: tuple[Step, ...]
    modules: tuple[str, ...]


def _tests(*options: str, workers: int = WORKERS) -> tuple[str, ...]:
    """Return how tests/gpu is run."""
    parallel = ("-n", str(workers)) if workers > 1 else ()
    return "-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir=.", "-q", *parallel, *options, "tests/gpu"


def _bench(sections: str, budget_s: int) -> Step:
    arguments = ("-m", "benchmarks", "gpu", "--sections", sections, "--budget", str(budget_s), "--out", "{out}")
    return Step(f"sections {sections}", arguments, budget_s + 20.0)


PARTS = {
    "1": Part(
        (
            Step("doctor", ("-m", "app", "doctor"), 30),
            Step("first tests", _tests("-k", "norms or silu or copies"), 90, is_first=True),
            Step("tests", _tests("--durations=20"), 280),
            _bench("S6", 150),
        ),
        ("benchmarks.gpu.sweep",),
    ),
    "2": Part(
        (_bench("S0,S4,S5", 560),),
        tuple(f"benchmarks.gpu.{name}" for name in ("warm_up", "ceilings", "offline", "peers", "serving", "clients")),
    ),
    "3": Part(
        (_bench("S0,S3,S1,S2,S7", 560),),
        tuple(f"benchmarks.gpu.{name}" for name in ("warm_up", "ceilings", "decode", "stress", "kernels", "sanitizer")),
    ),
}


def main() -> int:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help="1, 2 or 3")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="a folder; each part has its own in it")
    parser.add_argument("--wheels", type=Path, default=Path("gpu-wheels"), help="a folder with what may be missing")
    options = parser.parse_args()
    try:
        python = make_python(ROOT / ".gpu", options.wheels)
        rehearse([PARTS[part] for part in options.parts], python)
    except CannotRun as error:
        print(f"gpu: {error}", file=sys.stderr)
        return CANNOT_START
    codes = [run_part(part, python, options.out.resolve() / f"gpu-{part}") for part in options.parts]
    return max(codes)


def rehearse(parts: Sequence[Part], python: Path) -> None:
    """Do all that the parts need no device for, then look for one.

    Raises:
        CannotRun: it fails, or there is no GPU.
    """
    modules = dict.fromkeys(module for part in parts for module in ("app.server.run", *part.modules))
    checks = (
        ("not all modules can be imported", ("-c", f"import {', '.join(modules)}")),
        ("the tests cannot be collected", _tests("--collect-only", workers=1)),
    )
    for problem, arguments in checks:
        done = subprocess.run(
            [python, *arguments], cwd=ROOT, env=_environ(), capture_output=True, text=True, timeout=REHEARSAL_S
        )
        if done.returncode:
            raise CannotRun(f"{problem} here:\n{done.stdout}{done.stderr}")
    if subprocess.run([python, "-c", FOUND_GPU], env=_environ(), timeout=REHEARSAL_S).returncode:
        raise CannotRun("everything is ready up to the first call of a device, and torch finds no NVIDIA GPU here.")


def run_part(name: str, python: Path, out: Path) -> int:
    """Run the steps of a part, what each prints into a file of its own as well; return 1 if one failed."""
    out.mkdir(parents=True, exist_ok=True)
    began, code = time.monotonic(), 0
    for step in PARTS[name].steps:
        seconds = min(step.cap_s, LIMIT_S - (time.monotonic() - began))
        print(f"gpu-{name}: {step.name}, at most {seconds:.0f} s", flush=True)
        arguments = [each.format(out=out) for each in step.arguments]
        is_good, said = run_step([str(python), *arguments], seconds)
        # A benchmark writes all that matters itself.
        if "{out}" not in step.arguments:
            (out / f"{step.name.replace(' ', '-')}.log").write_text(said, encoding="utf-8")
        code |= not is_good
        if step.is_first and " passed" not in said:
            print(f"gpu-{name}: nothing of the {step.name} passed, so the rest is left out", flush=True)
            break
    print(f"gpu-{name}: {time.monotonic() - began:.0f} s, files in {out}", flush=True)
    return int(code)


def run_step(command: Sequence[str], seconds: float) -> tuple[bool, str]:
    """Run a command, print what it says; return whether it ended well, and all of that. It is ended when time is up."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    said, is_over = list[str](), Event()
    timer = Timer(max(seconds, 0.0), _end, (process, said, seconds, is_over))
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                print(line, end="", flush=True)
                said.append(line)
        return process.wait() == 0 and not is_over.is_set(), "".join(said)
    finally:
        timer.cancel()
        _end_group(process)


def _end(process: subprocess.Popen[str], said: list[str], seconds: float, is_over: Event) -> None:
    """End a command that has had its time: first as Ctrl-C does, so that it tells what it has."""
    is_over.set()
    said.append(f"ended at its cap of {seconds:.0f} s\n")
    print(said[-1], end="", flush=True)
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(TELLING_S)
    _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _environ() -> dict[str, str]:
    """The environment of all steps: kernels are compiled, and this checkout is found."""
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    sys.exit(main())
