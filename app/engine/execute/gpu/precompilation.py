"""Compiles all kernels that a model needs on a GPU, in processes beside the loading of the weights.

One model needs some thirty kernels of 1 to 3 s each. Python compiles one at a time per process, so there are several
processes; what they make is in Triton's cache when this process asks for it. A note in the cache says that a job is
done: the next start with the same model, settings and versions starts no process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from app.checkpoint.model_files import ModelFiles
from app.checkpoint.names import resolve
from app.checkpoint.spec import ModelSpec
from app.config.settings import Config
from app.contract.errors import CannotStart
from app.kernels.triton import specializations
from app.kernels.triton.c_compiler import check_c_compiler
from app.models.kv_scales import has_kv_scales
from app.runtime.cores import num_cores

_log = logging.getLogger("quire.engine")

MAX_WORKERS = 8  # each takes half a gigabyte of host memory
# Settings that change no kernel; the file of the note must not depend on them.
_UNRELATED = {
    "device", "revision", "served_model_name", "load_format", "chat_template", "seed", "enforce_eager", "num_kv_blocks",
    "kv_cache_memory", "gpu_memory_utilization", "enable_prefix_caching", "pin_prefix", "max_queue",
    "scheduling_policy", "itl_target", "run_ahead", "queue_timeout",
}  # fmt: skip
_KERNELS = Path(specializations.__file__).parent
_ROOT = _KERNELS.parents[2]  # of the package


class Precompilation:
    """The kernels of a model for GPUs of one compute capability; `num_processors` are those of each kind of GPU.

    Engine thread, or any one thread. `wait` ends its processes.

    Attributes:
        num_kernels: how many there are; 0 until `wait` has returned, and where the job had been done.
    """

    def __init__(
        self, config: Config, files: ModelFiles, capability: tuple[int, int], num_processors: Sequence[int]
    ) -> None:
        specializations.fix_cache_keys()  # this process will look for what others compile
        self._job = {
            "settings": _settings(config),
            "capability": capability,
            "num_processors": list(num_processors),
            "calibrates": calibrates(config, files),
        }
        self._notes = [_note(self._job, files.spec, count) for count in num_processors]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._lines: IO[bytes] | None = None
        self.num_workers = min(MAX_WORKERS, num_cores())
        self.num_kernels = 0

    @property
    def is_done(self) -> bool:
        """Whether Triton's cache has it all, by the notes in it."""
        return all(note.exists() for note in self._notes)

    def start(self) -> None:
        """Start the processes, unless the job is done.

        Raises:
            CannotStart: there is no C compiler, or the cache or the temporary folder cannot be written.
        """
        if self.is_done:
            return
        check_c_compiler()
        cache = specializations.cache_folder()
        _check_writable(cache)
        self._folder = folder = _temporary_folder()
        _log.info("Compiling the GPU kernels, once, in %d processes; they are kept in %s.", self.num_workers, cache)
        environment = {**_environment(), **specializations.libcuda_environment(folder)}
        receiver, sender = os.pipe()
        self._lines = os.fdopen(receiver, "rb")
        # `wait` ends what begins here. A start that fails before has nobody who would; then, or at the latest with this
        # process, the finalizer does: else compilers would go on that no parent waits for, and their folder stay.
        self._end = weakref.finalize(self, _end, self._workers, self._lines, folder)
        command = [sys.executable, "-P", "-m", __name__.rpartition(".")[0] + ".compile_worker", str(folder)]
        try:
            with (folder / "errors").open("wb") as errors:
                for _ in range(self.num_workers):
                    self._workers.append(
                        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=sender, stderr=errors)
                    )
        finally:
            os.close(sender)
        job = json.dumps(self._job).encode()
        for worker in self._workers:
            assert worker.stdin is not None
            with suppress(BrokenPipeError), worker.stdin as stdin:  # one that has failed is seen by `wait`
                stdin.write(job)

    def wait(self) -> list[str]:
        """Wait, with a progress bar, until all is compiled; return what went wrong, a line for each kernel. Blocks."""
        if self._lines is None:
            return []
        problems, done = [], 0
        with self._lines as lines, tqdm(desc="compiling kernels", unit="kernel", disable=None) as bar:
            for line in lines:  # to the end of the last process
                report = json.loads(line)
                done += "kernel" in report
                if "problem" in report:
                    problems.append(f"{report['kernel']}: {report['problem']}")
                bar.n, bar.total = done, report.get("total", bar.total)
                bar.refresh()
                self.num_kernels = report.get("total", self.num_kernels)
        if max(worker.wait() for worker in self._workers) != 0 or done < self.num_kernels:
            problems.append(f"a compiling process ended early: {self._last_error()}")
        if not problems:
            for note in self._notes:
                note.touch()
        self._lines = None
        self._end()
        return problems

    def finish(self) -> None:
        """Wait; what failed is logged, and will be compiled again, and fail, by the first step that needs it."""
        for problem in self.wait():
            _log.warning("Compiling the GPU kernels: %s", problem)

    def _last_error(self) -> str:
        lines = (self._folder / "errors").read_text(errors="replace").splitlines()
        return lines[-1].strip() if lines else "it wrote no error"


def calibrates(config: Config, files: ModelFiles) -> bool:
    """Return whether a start calibrates the scales of an FP8 cache: the files contain none, or are not there."""
    return config.cache.kv_cache_dtype == "fp8" and not has_kv_scales(files)


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings that a worker needs."""
    sections = (config.model, config.cache, config.scheduler)
    values = {field.name: getattr(section, field.name) for section in sections for field in dataclasses.fields(section)}
    kept = {name: value for name, value in values.items() if name not in _UNRELATED}
    model = str(resolve(config.model.model, config.model.revision))
    return {**kept, "model": model, "device": "cuda", "load_format": "dummy"}


def _environment() -> dict[str, str]:
    """Return this process' environment, in which a worker imports this package from wherever it starts."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(path)}


def _note(job: dict[str, Any], spec: ModelSpec, num_processors: int) -> Path:
    """Return the file that marks a job as done for GPUs with so many processors."""
    settings = {name: value for name, value in job["settings"].items() if name != "model"}
    state = hashlib.blake2b(digest_size=16)
    facts = (settings, job["capability"], job["calibrates"], num_processors)
    for part in (specializations.compiler_version(), spec, *facts):
        state.update(f"{part}\n".encode())
    for file in sorted([*_KERNELS.rglob("*.py"), *Path(__file__).parent.glob("*.py")]):
        state.update(file.read_bytes())
    return specializations.cache_folder() / f"quire-{state.hexdigest()}"


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotStart(
            f"Triton's cache {folder} cannot be written ({error.strerror}); set TRITON_CACHE_DIR to a folder of yours."
        ) from None


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="quire-"))
    except OSError as error:
        raise CannotStart(
            f"Compiling the GPU kernels needs a temporary folder, and none can be written ({error.strerror}); set "
            "TMPDIR to a folder of yours."
        ) from None


def _end(workers: list[subprocess.Popen[bytes]], lines: IO[bytes], folder: Path) -> None:
    lines.close()
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    shutil.rmtree(folder, ignore_errors=True)
