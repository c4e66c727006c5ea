"""The GGUF files of `cpu --gguf`, made once: quantized by `llama-quantize`, the one that made most files people have.

SmolLM2's are made from its own file (Q4_1), decoded to float32. Those of q06 have random weights. Files of dummies are
large and quickly made, so they are deleted after use.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.hub import smollm2
from app.runtime.cores import num_cores
from benchmarks.cpu.gguf.cells import QWEN3, QWEN3_CONFIG, SMOLLM2, SOURCE
from benchmarks.cpu.gguf.dummies import DUMMIES
from benchmarks.cpu.sides import GGUF_PACKAGE
from benchmarks.side import ROOT, SideFailed, last_line

QUANTIZE_LIMIT_S = 900.0
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
        file_bytes: its size.
        matrix_bytes: of the matrices that are multiplied: an embedding that is not the head as well is not.
        types: the share of each type of their weights.
        num_experts: of a layer; 0: it is no mixture.
        expert_bytes: of each layer's experts together, which are among the matrices.
    """

    file_bytes: int
    matrix_bytes: int
    types: Mapping[str, float]
    num_experts: int = 0
    expert_bytes: tuple[int, ...] = ()

    def step_bytes(self, distinct: Sequence[float]) -> float:
        """Return the bytes of the matrices that a step reads, if so many experts of each layer have rows."""
        pairs = zip(self.expert_bytes, distinct, strict=True)
        chosen = sum(num_bytes * count / self.num_experts for num_bytes, count in pairs)
        return self.matrix_bytes - sum(self.expert_bytes) + chosen

    def __str__(self) -> str:
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in self.types.items())
        return f"{self.file_bytes / 1e6:.0f} MB: {shares}"


def contents(file: Path) -> Contents:
    """Read what a file really holds: types are not always those of its name."""
    weights: Counter[str] = Counter()
    of_layers: Counter[str] = Counter()  # bytes of experts
    num_bytes = num_experts = 0
    tensors = GgufFiles.open(file).tensors
    for name, tensor in tensors.items():
        if len(tensor.shape) > 1 and not (name == EMBEDDING and HEAD in tensors):
            weights[tensor.type.name] += tensor.num_weights
            num_bytes += tensor.end - tensor.begin
        if len(tensor.shape) > 2:
            num_experts = tensor.shape[0]
            of_layers[name.rpartition(".ffn")[0]] += tensor.end - tensor.begin
    types = {kind: count / weights.total() for kind, count in weights.most_common()}
    return Contents(file.stat().st_size, num_bytes, types, num_experts, tuple(of_layers.values()))


@dataclass(frozen=True, slots=True)
class Files:
    """Makes files in `folder` with the programs of `llama_cpp`."""

    folder: Path
    llama_cpp: Path

    def file(self, shape: str, kind: str) -> Path:
        """Return a file; it is made the first time, which takes up to two minutes.

        Raises:
            SideFailed: it cannot be made.
        """
        file = self.folder / f"{shape}.{kind}.gguf"
        if not file.exists():
            part = file.with_suffix(".part")
            if shape in DUMMIES:
                self._write("benchmarks.peers.write_dummy_gguf", shape, kind, str(part))
            elif kind == SOURCE:
                self._write_source(shape, part)
            else:
                self._quantize(self.file(shape, SOURCE), part, kind)
            part.replace(file)
        return file

    def discard(self, shape: str, kind: str) -> None:
        """Delete a dummy's file; others are kept."""
        if shape in DUMMIES:
            (self.folder / f"{shape}.{kind}.gguf").unlink(missing_ok=True)

    def _write_source(self, shape: str, file: Path) -> None:
        if shape == SMOLLM2:
            if not smollm2.is_there():
                raise SideFailed("there is no real model; `make real-model` fetches it")
            self._quantize(smollm2.local_file(), file, "F32")
            return
        assert shape == QWEN3
        from benchmarks.cpu.weights import write_model

        model = self.folder / shape
        if not model.exists():
            write_model(QWEN3_CONFIG, self.folder / f"{shape}.new").rename(model)
        self._write("benchmarks.peers.write_gguf", str(model), "bf16", str(file))

    def _write(self, module: str, *arguments: str) -> None:
        """Run a program that needs the `gguf` package."""
        environ = {"PYTHONPATH": os.pathsep.join(map(str, (GGUF_PACKAGE, ROOT)))}
        self._run([sys.executable, "-m", module, *arguments], environ)

    def _quantize(self, source: Path, target: Path, kind: str) -> None:
        program = self.llama_cpp / "llama-quantize"
        self._run([str(program), "--allow-requantize", str(source), str(target), kind, str(num_cores())])

    def _run(self, command: list[str], environ: Mapping[str, str] | None = None) -> None:
        log = self.folder / "files.log"
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    command,
                    env={**os.environ, **(environ or {})},
                    stdout=output,
                    stderr=output,
                    timeout=QUANTIZE_LIMIT_S,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SideFailed(f"{command[0]}: {error}") from None
        if done.returncode:
            raise SideFailed(f"its file could not be made: {last_line(log)} (see {log})")
