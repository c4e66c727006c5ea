"""Fills `DecoderWeights` from safetensors, or with random numbers (`--load-format dummy`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from app.checkpoint.folder import Checkpoint, refused
from app.checkpoint.spec import ModelSpec
from app.kernels.ops import LinearWeight, Weight
from app.kernels.pages import own_pages
from app.models.mapped_file import MappedFile, Part
from app.models.parallel import ParallelContext
from app.models.weights import DecoderWeights, LayerWeights, Packer, PlainPacker

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[float], None]
"""Called with the loaded share, 0..1."""


class Allocate(Protocol):
    """Allocates memory for one tensor, initialized or not."""

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate."""


class TensorSource(Protocol):
    """Reads tensors by their checkpoint name."""

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """Fill `out` with `part` of the tensor, converting the type."""


class SafetensorsSource:
    """Reads from memory-mapped safetensors files. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file cannot be opened.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._entries = checkpoint.tensors or {}
        self._files: dict[Path, MappedFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SafetensorsSource:
        for file in {entry.file for entry in self._entries.values()}:
            try:
                self._files[file] = self._stack.enter_context(MappedFile(file))
            except (OSError, ValueError) as error:
                self._stack.close()
                raise refused(f"{file} cannot be loaded: {error}; download the model again.") from None
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """See TensorSource.read."""
        entry = self._entries[name]
        self._files[entry.file].read(entry, part, out)


class DummySource:
    """Random weights of a realistic scale, the same for the same seed and device. For benchmarks and tests."""

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._generator = torch.Generator(device or "cpu").manual_seed(seed)

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """See TensorSource.read: norms are 1, biases are small, matrices preserve the variance of their input."""
        if name.endswith("norm.weight"):
            out.fill_(1.0)
            return
        bound = 0.02 if out.dim() == 1 else (3.0 / out.shape[1]) ** 0.5
        out.uniform_(-bound, bound, generator=self._generator)


def load_weights(
    spec: ModelSpec,
    source: TensorSource,
    parallel: ParallelContext,
    progress: Progress = lambda share: None,
    packer: Packer | None = None,
    allocate: Allocate = own_pages,
) -> DecoderWeights:
    """Load all weights in the spec's dtype; `packer` gets each matrix before the next is read. Engine thread; blocks.

    `allocate(*shape, dtype=)` returns the memory to read a tensor into, on any device.

    The largest matrices are loaded first, when there is memory for the matrix and its packed copy.
    """
    reader = _Reader(spec, source, parallel, progress, packer or PlainPacker(), allocate)
    embedding, head = reader.ends()
    layers = tuple(reader.layer(index) for index in range(spec.num_layers))
    return DecoderWeights(embedding, layers, reader.tensor("model.norm.weight", (spec.hidden_size,)), head)


@dataclass
class _Reader:
    """Reads this rank's parts; matrices before an all-reduce are split by columns, the others by rows."""

    spec: ModelSpec
    source: TensorSource
    parallel: ParallelContext
    progress: Progress
    packer: Packer
    allocate: Allocate

    def __post_init__(self) -> None:
        self.num_read, self.num_tensors = 0, len(self.spec.tensor_shapes())

    def stacked(self, rows: dict[str, int], *columns: int, split: int | None = None) -> Tensor:
        """Read this rank's parts of several tensors (name -> number of rows), concatenated along the first dimension.

        `split` is the dimension that is divided among ranks (None: each rank reads all).
        """
        parts = {name: self._part((count, *columns), split) for name, count in rows.items()}
        ends = list(accumulate(part[0].stop - part[0].start for part in parts.values()))
        width = [each.stop - each.start for each in next(iter(parts.values()))[1:]]
        out = self.allocate(ends[-1], *width, dtype=DTYPES[self.spec.dtype])
        for (name, part), begin, end in zip(parts.items(), [0, *ends], ends, strict=False):
            self.source.read(name, part, out[begin:end])
            self.num_read += 1
            self.progress(self.num_read / self.num_tensors)
        return out

    def tensor(self, name: str, shape: tuple[int, ...], *, split: int | None = None) -> Tensor:
        """Read this rank's part of a tensor."""
        return self.stacked({name: shape[0]}, *shape[1:], split=split)

    def ends(self) -> tuple[Weight, Weight]:
        """Read the embedding and the output layer."""
        shape = (self.spec.vocab_size, self.spec.hidden_size)
        if self.spec.tie_word_embeddings:
            return self.packer.tied(LinearWeight(self.tensor("model.embed_tokens.weight", shape, split=0)))
        head = self.packer.linear(LinearWeight(self.tensor("lm_head.weight", shape, split=0)))
        return LinearWeight(self.tensor("model.embed_tokens.weight", shape, split=0)), head

    def layer(self, index: int) -> LayerWeights:
        spec, prefix = self.spec, f"model.layers.{index}."
        d, f, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_size, spec.kv_size
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return LayerWeights(
            input_norm=self.tensor(prefix + "input_layernorm.weight", (d,)),
            qkv=self._linear(attention, {"q_proj": q, "k_proj": kv, "v_proj": kv}, d, 0, spec.qkv_bias),
            qk_norm=self._qk_norm(attention) if spec.qk_norm else None,
            o=self._linear(attention, {"o_proj": d}, q, 1, spec.o_bias),
            post_norm=self.tensor(prefix + "post_attention_layernorm.weight", (d,)),
            gate_up=self._linear(mlp, {"gate_proj": f, "up_proj": f}, d, 0, spec.mlp_bias, is_gated=True),
            down=self._linear(mlp, {"down_proj": d}, f, 1, spec.mlp_bias),
        )

    def _linear(
        self, prefix: str, parts: dict[str, int], columns: int, split: int, has_bias: bool, *, is_gated: bool = False
    ) -> Weight:
        """Read several matrices (and their biases) as one matrix, concatenated by rows."""
        weight = self.stacked({f"{prefix}{name}.weight": rows for name, rows in parts.items()}, columns, split=split)
        bias = None
        if has_bias:
            bias_rows = {f"{prefix}{name}.bias": rows for name, rows in parts.items()}
            bias = self.stacked(bias_rows, split=0 if split == 0 else None)
        return self.packer.linear(LinearWeight(weight, bias), is_gated=is_gated)

    def _qk_norm(self, prefix: str) -> Tensor:
        head = (self.spec.head_dim,)
        q = self.tensor(prefix + "q_norm.weight", head).expand(self.spec.num_heads, -1)
        k = self.tensor(prefix + "k_norm.weight", head).expand(self.spec.num_kv_heads, -1)
        return torch.cat([q, k])

    def _part(self, shape: tuple[int, ...], split: int | None) -> Part:
        return tuple(self.parallel.shard(size) if dim == split else slice(0, size) for dim, size in enumerate(shape))
