"""The GGUF files of `cpu --gguf`, made once: quantized by `llama-quantize`, the one that made most files people have.

SmolLM2's are made from its own file (Q4_1), decoded to float32. Those of q06 have random weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.hub import smollm2
from app.runtime.cores import num_cores
from benchmarks.cpu.gguf.cells import QWEN3, QWEN3_CONFIG, SMOLLM2, SOURCE
from benchmarks.cpu.sides import GGUF_PACKAGE
from benchmarks.side import ROOT, SideFailed, last_line

QUANTIZE_LIMIT_S = 900.0


class Contents(NamedTuple):
    """What a file holds: its bytes, those of its matrices, and the share of each type of their weights."""

    file_bytes: int
    matrix_bytes: int
    types: Mapping[str, float]

    def __str__(self) -> str:
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in self.types.items())
        return f"{self.file_bytes / 1e6:.0f} MB: {shares}"


def contents(file: Path) -> Contents:
    """Read what a file really holds: types are not always those of its name. The embedding is the head as well."""
    weights: Counter[str] = Counter()
    num_bytes = 0
    for tensor in GgufFiles.open(file).tensors.values():
        if len(tensor.shape) > 1:
            weights[tensor.type.name] += tensor.num_weights
            num_bytes += tensor.end - tensor.begin
    types = {kind: count / weights.total() for kind, count in weights.most_common()}
    return Contents(file.stat().st_size, num_bytes, types)


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
            if kind == SOURCE:
                self._write_source(shape, part)
            else:
                self._quantize(self.file(shape, SOURCE), part, kind)
            part.replace(file)
        return file

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
        command = [sys.executable, "-m", "benchmarks.peers.write_gguf", str(model), "bf16", str(file)]
        self._run(command, {"PYTHONPATH": os.pathsep.join(map(str, (GGUF_PACKAGE, ROOT)))})

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
