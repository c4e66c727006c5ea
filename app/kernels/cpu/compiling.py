"""Compiles the native kernels: once per instruction set and version of the sources.

Used on the first start of an installation that brought no compiled kernels, and by the package's build. Nothing here
needs torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
# Never -ffast-math: sums have one order, and NaN means something.
FLAGS = (
    "-std=c++17", "-O3", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-Wall", "-Wextra",
    # gcc 12 suspects its own AVX-512 headers.
    "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi", "-Wno-ignored-attributes",
)  # fmt: skip
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "f16c"})
_AVX512_VNNI = _AVX512 | {"avx512_vnni"}
_AVX512_VNNI_FLAGS = ("-march=x86-64-v4", "-mavx512vnni")
_AVX512_BF16 = _AVX512_VNNI | {"avx512_bf16"}
_AVX512_BF16_FLAGS = (*_AVX512_VNNI_FLAGS, "-mavx512bf16")
# The best first: name -> (what /proc/cpuinfo must list, the compiler's flags).
INSTRUCTION_SETS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "amx": (
        _AVX512_BF16 | {"amx_tile", "amx_bf16", "amx_int8"},
        (*_AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    "avx512_bf16": (_AVX512_BF16, _AVX512_BF16_FLAGS),
    "avx512_vnni": (_AVX512_VNNI, _AVX512_VNNI_FLAGS),
    "avx512": (_AVX512, ("-march=x86-64-v4",)),
    "avx2": (frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"}), ("-march=x86-64-v3",)),
}
_COMPILERS = ("g++", "c++")


_LOOK_S = 0.1
_SCRATCH = "compiling-"
_SCRATCH_LIFE_S = 24 * 60 * 60  # no compilation takes that long

Watch = Callable[[int, int], None]
"""Called several times a second with how many of all sources are compiled; an exception ends the compilers."""


class CannotCompile(Exception):
    """There is no compiler, or it failed; the message is for people."""


def supported_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets this machine can run, the best first; none if it is not Linux on x86-64."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return []
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    return [name for name, (needed, _) in INSTRUCTION_SETS.items() if needed <= flags]


def find_compiler() -> str:
    """Return the C++ compiler: `CXX`, or the first of the usual names.

    Raises:
        CannotCompile: there is none.
    """
    for name in (os.environ.get("CXX"), *_COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise CannotCompile("There is no C++ compiler (looked for CXX, " + ", ".join(_COMPILERS) + "); install g++.")


def source_key() -> str:
    """Return a hash of the sources and of how they are compiled."""
    state = hashlib.blake2b(digest_size=8)
    for file in sorted(SOURCES.glob("*.[ch]*")):
        state.update(file.name.encode() + b"\0" + file.read_bytes())
    flags = [*FLAGS, *(flag for _, own in INSTRUCTION_SETS.values() for flag in own)]
    state.update(" ".join(flags).encode())
    return state.hexdigest()


def compile_library(name: str, target: Path, watch: Watch = lambda done, total: None) -> None:
    """Compile the sources for instruction set `name` into `target`; it appears only when it is whole.

    An interrupt ends it at once and leaves nothing behind, and so does whatever `watch` raises.

    Raises:
        CannotCompile: there is no compiler, it failed, or the folder cannot be written.
    """
    compiler = find_compiler()
    flags = [*FLAGS, *INSTRUCTION_SETS[name][1]]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:
            folder = Path(scratch)
            sources = sorted(SOURCES.glob("*.cpp"))
            objects = [folder / f"{source.stem}.o" for source in sources]
            _run_together(
                [
                    [compiler, *flags, "-c", str(source), "-o", str(made)]
                    for source, made in zip(sources, objects, strict=True)
                ],
                folder,
                watch,
            )
            made = folder / target.name
            link = [compiler, *flags, "-shared", *map(str, objects), "-o", str(made)]
            _run_together([link], folder, lambda done, total: watch(len(objects), len(objects)))
            with made.open("rb") as stream:
                os.fsync(stream.fileno())  # or a crash of the system could leave half a library behind
            made.replace(target)
    except OSError as error:
        raise CannotCompile(f"The kernels could not be compiled into {target.parent}: {error}") from None


def _remove_abandoned(folder: Path) -> None:
    """Remove the scratch folders that killed processes have left behind."""
    for scratch in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _SCRATCH_LIFE_S:
                shutil.rmtree(scratch)


def _run_together(commands: list[list[str]], folder: Path, watch: Watch) -> None:
    """Run all commands at the same time; what they complain of goes to files in `folder`."""
    logs = [folder / f"{number}.log" for number in range(len(commands))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as stream:
                # A group of its own: Ctrl-C is for this process to handle, it must not look like a compiler that fails.
                started.append(subprocess.Popen(command, stdout=stream, stderr=stream, process_group=0))
        while True:
            watch(done := sum(process.poll() is not None for process in started), len(started))
            if done == len(started):
                break
            with suppress(subprocess.TimeoutExpired):
                next(process for process in started if process.returncode is None).wait(_LOOK_S)
    finally:
        for process in started:
            _kill(process)
    for process, log in zip(started, logs, strict=True):
        if process.returncode:
            raise CannotCompile(f"{commands[0][0]} failed: {_complaint(process.returncode, log)}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler that still runs, with the programs that it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _complaint(returncode: int, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    said = next((line for line in lines if "error" in line), " ".join(lines)[-500:])
    if said:
        return said
    return f"ended by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
