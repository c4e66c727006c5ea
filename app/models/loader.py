"""Fills `DecoderWeights` from safetensors, or with random numbers (`--load-format dummy`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from app.checkpoint import Checkpoint
from app.errors import ModelRefused
from app.kernels.ops import LinearWeight
from app.models.parallel import ParallelContext
from app.models.spec import ModelSpec
from app.models.weights import DecoderWeights, LayerWeights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[float], None]
"""Called with the loaded share, 0..1."""


Part = tuple[slice, ...]
"""This rank's part of a tensor: one slice per dimension."""


class TensorSource(Protocol):
    """Gives tensors by their checkpoint name."""

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """Fill `out` with that part of the tensor, converting the type."""


class SafetensorsSource:
    """Reads from memory-mapped safetensors files, one tensor at a time. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file that cannot be opened.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._entries = checkpoint.tensors or {}
        self._files: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SafetensorsSource:
        for file in {entry.file for entry in self._entries.values()}:
            try:
                self._files[file] = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                reason = " ".join(str(error).split())
                raise ModelRefused(
                    f"{file} cannot be loaded: {reason}; download the model again.", param="model"
                ) from None
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """See TensorSource.read."""
        out.copy_(self._files[self._entries[name].file].get_slice(name)[part])


class DummySource:
    """Random weights of a sensible scale, the same for the same seed. For benchmarks and tests."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """See TensorSource.read: norms are 1, biases small, matrices keep the variance of their input."""
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
) -> DecoderWeights:
    """Load all weights in the spec's dtype; fused matrices are filled part by part. Engine thread only; blocks."""
    reader = _Reader(spec, source, parallel, progress)
    d = spec.hidden_size
    embedding = reader.tensor("model.embed_tokens.weight", (spec.vocab_size, d), split=0)
    layers = tuple(reader.layer(index) for index in range(spec.num_layers))
    norm = reader.tensor("model.norm.weight", (d,))
    head = embedding if spec.tie_word_embeddings else reader.tensor("lm_head.weight", (spec.vocab_size, d), split=0)
    return DecoderWeights(embedding, layers, norm, LinearWeight(head))


class _Reader:
    """Reads this rank's parts; products that end in an all-reduce are split by columns, the others by rows."""

    def __init__(self, spec: ModelSpec, source: TensorSource, parallel: ParallelContext, progress: Progress) -> None:
        self.spec = spec
        self.source = source
        self.parallel = parallel
        self.progress = progress
        self.dtype = DTYPES[spec.dtype]
        self.num_tensors = len(spec.tensor_shapes())
        self.num_read = 0

    def tensor(self, name: str, shape: tuple[int, ...], *, split: int | None = None) -> Tensor:
        """Read this rank's part of a tensor, cut along dimension `split` (None: all of it)."""
        part = tuple(self.parallel.shard(size) if dim == split else slice(0, size) for dim, size in enumerate(shape))
        out = torch.empty([piece.stop - piece.start for piece in part], dtype=self.dtype)
        self.source.read(name, part, out)
        self.num_read += 1
        self.progress(self.num_read / self.num_tensors)
        return out

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
            gate_up=self._linear(mlp, {"gate_proj": f, "up_proj": f}, d, 0, spec.mlp_bias),
            down=self._linear(mlp, {"down_proj": d}, f, 1, spec.mlp_bias),
        )

    def _linear(self, prefix: str, parts: dict[str, int], columns: int, split: int, has_bias: bool) -> LinearWeight:
        """Stack the rows of several matrices (and their biases) into one product."""
        weights = [self.tensor(f"{prefix}{name}.weight", (rows, columns), split=split) for name, rows in parts.items()]
        if not has_bias:
            return LinearWeight(torch.cat(weights) if len(weights) > 1 else weights[0])
        bias_split = 0 if split == 0 else None
        biases = [self.tensor(f"{prefix}{name}.bias", (rows,), split=bias_split) for name, rows in parts.items()]
        return LinearWeight(torch.cat(weights), torch.cat(biases))

    def _qk_norm(self, prefix: str) -> Tensor:
        head = (self.spec.head_dim,)
        q = self.tensor(prefix + "q_norm.weight", head).expand(self.spec.num_heads, -1)
        k = self.tensor(prefix + "k_norm.weight", head).expand(self.spec.num_kv_heads, -1)
        return torch.cat([q, k])
