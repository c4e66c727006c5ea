"""The two sides of `cpu --gguf` and `--families`, each with one file open: tokens per second under a load."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint.gguf.gguf_files import GgufFiles
from benchmarks.cpu.cells import KV_CACHE_BYTES, OURS, draw_prompts
from benchmarks.cpu.gguf.cells import LOADS, MAX_MODEL_LEN, SETS, Load
from benchmarks.cpu.sides import PEERS, BatchedBench
from benchmarks.side import ROOT, Side, SideFailed

THEIRS = "llama.cpp"
# Of Quire's, one after the other, as llama.cpp's are: a virtual machine gives memory that was free for seconds slowly
# (1.5 s of processor time a GB), and memory that was freed just now at once.
OPENINGS = 5
MAX_ATTEMPTS = 20  # a small model's steps take less than what other programs disturb

Rates = dict[str, float]
"""Tokens per second by the name of the load."""


class Loading(NamedTuple):
    """The seconds of each opening of a model, and the most memory meanwhile beyond what stays."""

    seconds: list[float]
    passing_bytes: int


class QuireFile:
    """Quire with one model open, in a process that is stopped between measurements.

    Attributes:
        settings: how it was started.
        loading_s: the seconds of each opening of the model.
        passing_bytes: the most memory meanwhile beyond what stays.
    """

    name = OURS

    def __init__(self, side: Side, vocab_size: int, settings: str, loading: Loading, *, is_dummy: bool = False) -> None:
        self.settings = settings
        self.loading_s = loading.seconds
        self.passing_bytes = loading.passing_bytes
        self._side, self._vocab_size = side, vocab_size
        # Dummies' likeliest tokens are soon the same in all rows, and so are their experts; llama.cpp's are random.
        self._temperature = float(is_dummy)

    @classmethod
    def open(cls, model: Path, quantization: str | None, set_name: str, log: Path, is_dummy: bool = False) -> QuireFile:
        """Open a model with the kernels of one of SETS.

        Raises:
            SideFailed: it cannot be served so.
        """
        command = [sys.executable, "-m", "benchmarks.cpu.program"]
        settings: dict[str, object] = {
            "dtype": "bfloat16",
            "max_model_len": MAX_MODEL_LEN,
            "kv_cache_memory": KV_CACHE_BYTES,
        }
        if quantization is not None:
            settings["quantization"] = quantization
        opening = {"model": str(model), "settings": settings, "instruction_set": SETS[set_name]}
        side = Side(command, log, environ_of(set_name))
        try:
            opened = [side.ask(do="open", **opening) for _ in range(OPENINGS)]
            vocab_size = GgufFiles.open(model).tensors["token_embd.weight"].shape[0]
            how = f"{shlex.join(command)} {json.dumps(opening)} with the kernels for {opened[0]['kernels']}"
            passing_bytes = max(each["passing_bytes"] for each in opened)
            loading = Loading([each["seconds"] for each in opened], passing_bytes)
            found = cls(side, vocab_size, how, loading, is_dummy=is_dummy)
            found._warm_up()
        except BaseException:
            side.close()
            raise
        return found

    def measure(self, turn: str) -> Rates:
        """Measure all loads, with prompts that only this `turn` has; raises SideFailed."""
        return {
            load.name: statistics.median(self._rate(load, f"{turn} {index}") for index in range(load.repeats))
            for load in LOADS
        }

    def read_rate(self, num_bytes: int) -> float:
        """Return how many bytes the machine reads per second, of so many."""
        return float(self._side.ask(do="probe", num_bytes=num_bytes)["read"])

    def distinct_experts(self, load: Load) -> list[float]:
        """Return how many experts of each layer have rows in a decode step, on average; none if it is no mixture."""
        return list(map(float, self._ask("count", load, 1 + load.num_steps, "count")["distinct"]))

    def close(self) -> None:
        """End the process. Idempotent."""
        self._side.close()

    def _warm_up(self) -> None:
        for load in LOADS:
            self._seconds(load, 2, "warm-up")

    def _rate(self, load: Load, turn: str) -> float:
        for attempt in range(MAX_ATTEMPTS):
            first = self._seconds(load, 1, f"{turn} {attempt} first")
            if not load.num_steps:
                return load.num_tokens / first
            seconds = self._seconds(load, 1 + load.num_steps, f"{turn} {attempt}") - first
            if seconds > 0:
                return load.num_tokens / seconds
        raise SideFailed(f"{load.num_steps} steps took no time; this machine is too busy to measure")

    def _seconds(self, load: Load, num_new: int, seed: str) -> float:
        return float(self._ask("generate", load, num_new, seed)["seconds"])

    def _ask(self, do: str, load: Load, num_new: int, seed: str) -> dict[str, Any]:
        prompts = draw_prompts([load.num_prompt] * load.batch, self._vocab_size, f"{load.name} {num_new} {seed}")
        new = [num_new] * load.batch
        return self._side.ask(do=do, how="", prompts=prompts, num_new_tokens=new, temperature=self._temperature)


class LlamaCppFile:
    """llama.cpp's program for one of SETS, which opens the file for each measurement.

    Attributes:
        settings: how it is started.
        loading_s: the seconds of each run that it did not measure.
    """

    name = THEIRS

    def __init__(self, file: Path, set_name: str, log: Path) -> None:
        self._bench = BatchedBench(program_folder(set_name) / "llama-batched-bench", file, log)
        log.write_bytes(b"")
        self._flash_attention = self._bench.faster_attention(num_prompt=16, num_new=8)
        self.settings = shlex.join(self._bench.command(self._flash_attention, [1], 16, 16))
        self.loading_s: list[float] = []

    def measure(self, turn: str) -> Rates:
        """Measure all loads, those of the same lengths in one run; raises SideFailed."""
        found: Rates = {}
        for loads in ([load for load in LOADS if load.num_steps], [load for load in LOADS if not load.num_steps]):
            found |= self._run(loads)
        return found

    def _run(self, loads: Sequence[Load]) -> Rates:
        num_prompt, num_steps = loads[0].num_prompt, loads[0].num_steps
        batches = [load.batch for load in loads for _ in range(load.repeats)]
        start = time.perf_counter()
        found = self._bench.run(self._flash_attention, batches, num_prompt, num_steps or 1)
        self.loading_s.append(time.perf_counter() - start - sum(row["t"] for row in found))
        rows = iter(found)
        speed = "speed_tg" if num_steps else "speed_pp"
        return {load.name: statistics.median(next(rows)[speed] for _ in range(load.repeats)) for load in loads}


def program_folder(set_name: str) -> Path:
    """Return where llama.cpp's programs for one of SETS are."""
    return PEERS / ("llama.cpp" if SETS[set_name] is None else f"llama.cpp-{SETS[set_name]}")


def environ_of(set_name: str) -> dict[str, str]:
    """Return the environment of a process of Quire that uses one of SETS: torch's own operations, too."""
    torch = {} if SETS[set_name] is None else {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return {"PYTHONPATH": str(ROOT), **torch}
