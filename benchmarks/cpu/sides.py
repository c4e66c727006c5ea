"""The sides of the benchmark `cpu`: Quire, vLLM, llama.cpp and transformers, each in a process of its own.

Peers are found in `.peers` of the repository, where `make peers` puts them, and in this Python (transformers). A peer
that is missing or fails is left out with one line.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.runtime.cores import num_cores
from benchmarks.cpu.cells import (
    FORMATS,
    KV_CACHE_BYTES,
    MAX_MODEL_LEN,
    NUM_NEW,
    NUM_PROMPT,
    OURS,
    PEER_NAMES,
    Cell,
    Probe,
    Rates,
    draw_prompts,
    rates,
    vocab_size,
)
from benchmarks.side import ANSWER_LIMIT_S, ROOT, Side, SideFailed, last_line

PEERS = ROOT / ".peers"
PROGRAMS = ROOT / "benchmarks" / "peers"
LLAMA_PROGRAM, GGUF_PACKAGE = PEERS / "llama.cpp" / "llama-batched-bench", PEERS / "gguf"

WARM_UP_TOKENS = 8
MAX_ATTEMPTS = 3
LLAMA_CONTEXT = 256  # of a sequence: multiples of it, which it does not have to round
FEW_CORES = 4  # up to here vLLM's automatic binding would give away too much


class GeneratingSide:
    """A program that generates: how long for all tokens, how long for the first ones."""

    def __init__(self, name: str, side: Side, settings: str) -> None:
        self.name = name
        self.settings = settings
        self._side = side
        self._warm: Cell | None = None

    def measure(self, cell: Cell, turn: str) -> Rates:
        """Measure a cell once, with prompts that only this `turn` has; warm up first where the last one was another.

        Raises:
            SideFailed: see `Side.ask`; also if the two times are indistinguishable on a busy machine.
        """
        if cell != self._warm:
            self._seconds(cell, WARM_UP_TOKENS, "warm-up")
            self._warm = cell
        for attempt in range(MAX_ATTEMPTS):
            seconds, first = (
                statistics.median(self._seconds(cell, new, f"{turn} {attempt} {i}") for i in range(cell.repeats))
                for new in (NUM_NEW, 1)
            )
            if seconds > first:
                return rates(cell.batch, seconds, first)
        raise SideFailed(f"{NUM_NEW} tokens took no longer than one; this machine is too busy to measure")

    def generate(self, prompts: Sequence[Sequence[int]], num_new_tokens: Sequence[int], how: str = "") -> float:
        """Return the seconds that all answers take; `how` is one of the ways a program knows."""
        answer = self._side.ask(do="generate", how=how, prompts=prompts, num_new_tokens=num_new_tokens)
        return float(answer["seconds"])

    def probe(self, num_bytes: int) -> Probe:
        """Measure the machine, reading so many bytes; only Quire's program can.

        Raises:
            SideFailed: see `Side.ask`.
        """
        return Probe(**self._side.ask(do="probe", num_bytes=num_bytes))

    def close(self) -> None:
        """End the program. Idempotent."""
        self._side.close()

    def _seconds(self, cell: Cell, num_new: int, seed: str) -> float:
        prompts = draw_prompts([NUM_PROMPT] * cell.batch, vocab_size(cell.shape), f"{cell} {num_new} {seed}")
        return self.generate(prompts, [num_new] * cell.batch)


class BatchedBench:
    """`llama-batched-bench` on one file. It loads the model for each run, and makes its own prompts."""

    def __init__(self, program: Path, file: Path, log: Path) -> None:
        self._program, self._file, self._log = program, file, log

    def command(self, flash_attention: str, batches: Sequence[int], num_prompt: int, num_new: int) -> list[str]:
        """Return the command line that measures `batches`, numbers of prompts that are answered at once."""
        context = max(batches) * (-(-(num_prompt + num_new) // LLAMA_CONTEXT) * LLAMA_CONTEXT)
        threads = str(num_cores())
        return [
            str(self._program), "-m", str(self._file), "-c", str(context), "-npp", str(num_prompt),
            "-ntg", str(num_new), "-npl", ",".join(map(str, batches)), "-t", threads, "-tb", threads, "-ngl", "0",
            "-fa", flash_attention, "--output-format", "jsonl",
        ]  # fmt: skip

    def faster_attention(self, num_prompt: int = NUM_PROMPT, num_new: int = 16) -> str:
        """Return whether flash attention is faster "on" or "off", in two short runs; raises like `run`."""
        trials = {choice: float(self.run(choice, [8], num_prompt, num_new)[0]["speed"]) for choice in ("on", "off")}
        return max(trials, key=trials.__getitem__)

    def run(self, flash_attention: str, batches: Sequence[int], num_prompt: int, num_new: int) -> list[dict[str, Any]]:
        """Return the figures that the program prints, a dict for each of the batches.

        Raises:
            SideFailed: it fails or prints nothing.
        """
        command = self.command(flash_attention, batches, num_prompt, num_new)
        with self._log.open("a") as log:
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=ANSWER_LIMIT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SideFailed(f"llama-batched-bench: {error}") from None
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or len(found) != len(batches):
            raise SideFailed(f"llama-batched-bench failed (exit code {done.returncode}); see {self._log}")
        return found


class LlamaCppSide:
    """llama.cpp, which measures the two rates itself."""

    name = "llama.cpp"

    def __init__(self, program: Path, file: Path, log: Path) -> None:
        self._bench = BatchedBench(program, file, log)
        self._flash_attention = self._bench.faster_attention()
        self.settings = shlex.join(self._bench.command(self._flash_attention, [8], NUM_PROMPT, NUM_NEW))

    def measure(self, cell: Cell, turn: str) -> Rates:
        """Measure a cell once.

        Raises:
            SideFailed: llama.cpp fails or prints nothing.
        """
        found = self._bench.run(self._flash_attention, [cell.batch] * cell.repeats, NUM_PROMPT, NUM_NEW)
        return Rates(*(statistics.median(run[name] for run in found) for name in ("speed_tg", "speed_pp")))

    def close(self) -> None:
        """Nothing runs between measurements."""


def missing_peers() -> dict[str, str]:
    """Return which peers cannot be measured here, and why."""
    if not PROGRAMS.is_dir():
        return dict.fromkeys(PEER_NAMES, "the programs that measure peers are in the repository only")
    missing = {}
    if not (PEERS / "vllm" / ".done").exists():
        missing["vLLM"] = "not installed; `make peers` does it"
    if not LLAMA_PROGRAM.exists() or not GGUF_PACKAGE.exists():
        missing["llama.cpp"] = "not built; `make peers` does it"
    if find_spec("transformers") is None:
        missing["transformers"] = "not installed; `pip install transformers` does it"
    return missing


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens sides on checkpoints; logs and llama.cpp's form of the weights are written into `folder`."""

    folder: Path

    def quire(self, model: Path, format_name: str) -> GeneratingSide:
        """Open Quire.

        Raises:
            SideFailed: it cannot serve the model so.
        """
        settings: dict[str, object] = {"max_model_len": MAX_MODEL_LEN, "kv_cache_memory": KV_CACHE_BYTES}
        if (quantization := FORMATS[format_name].quantization) is not None:
            settings["quantization"] = quantization
        command = [sys.executable, "-m", "benchmarks.cpu.program"]
        return self._generating(OURS, command, {}, model=str(model), settings=settings)

    def vllm(self, model: Path) -> GeneratingSide:
        """Open vLLM.

        Raises:
            SideFailed: it fails.
        """
        command = [str(PEERS / "vllm" / "bin" / "python"), "-m", "benchmarks.peers.vllm_side"]
        return self._generating("vLLM", command, vllm_environ(), model=str(model), max_model_len=MAX_MODEL_LEN)

    def transformers(self, model: Path) -> GeneratingSide:
        """Open transformers.

        Raises:
            SideFailed: it fails.
        """
        command = [sys.executable, "-m", "benchmarks.peers.transformers_side"]
        return self._generating("transformers", command, {}, model=str(model), kv_cache_bytes=KV_CACHE_BYTES)

    def llama_cpp(self, model: Path, format_name: str) -> LlamaCppSide:
        """Write the weights as llama.cpp has them, once, and open it.

        Raises:
            SideFailed: it fails.
        """
        kind = FORMATS[format_name].gguf
        file, log = self.folder / f"{model.name}.{kind}.gguf", self.folder / "llama.cpp.log"
        log.write_bytes(b"")
        if not file.exists():
            part = file.with_suffix(".part")
            command = [sys.executable, "-m", "benchmarks.peers.write_gguf", str(model), kind, str(part)]
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (GGUF_PACKAGE, ROOT)))}
            with log.open("a") as output:
                if subprocess.run(command, env=environ, stdout=output, stderr=output).returncode:
                    raise SideFailed(f"its weights could not be written: {last_line(log)} (see {log})")
            part.replace(file)
        return LlamaCppSide(LLAMA_PROGRAM, file, log)

    def _generating(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], **opening: object
    ) -> GeneratingSide:
        side = Side(command, self.folder / f"{name}.log", {"PYTHONPATH": str(ROOT), **environ})
        try:
            side.ask(do="open", **opening)
        except BaseException:
            side.close()
            raise
        variables = [f"{key}={value}" for key, value in environ.items()]
        return GeneratingSide(name, side, f"{shlex.join([*variables, *command])} {json.dumps(opening)}")


def vllm_environ() -> dict[str, str]:
    """Return the environment that vLLM recommends for CPUs: all cores, libraries to preload, room for the cache."""
    libraries = [*PEERS.glob("tcmalloc/**/libtcmalloc_minimal.so.4"), *PEERS.glob("vllm/lib/libiomp5.so")]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(num_cores()))
    return {
        "LD_PRELOAD": ":".join(map(str, libraries)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)) if len(cores) <= FEW_CORES else "auto",
        "VLLM_CACHE_ROOT": str(PEERS / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
