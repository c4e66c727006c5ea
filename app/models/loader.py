"""Fills `DecoderWeights` from the tensors of a source, or with random numbers (`--load-format dummy`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

from app.checkpoint.spec import ROUTER, SHARED_EXPERT, SHARED_GATE, BlockNorms, ExpertSpec, ModelSpec, QKNorm
from app.checkpoint.tensor_types import DTYPES as STORED_DTYPES
from app.checkpoint.tensor_types import TensorType
from app.kernels.ops import ExpertWeights, LinearWeight, StackedWeight, StoredWeight, Weight
from app.kernels.pages import own_pages
from app.models.rope import head_order
from app.models.weights import DecoderWeights, DenseMlp, ExpertMlp, LayerWeights, Packer, PlainPacker

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# The fields of LayerWeights that hold a layer's norms, in the order of the names in `BlockNorms`.
_NORM_PLACES = {
    BlockNorms.BEFORE: ("input_norm", "mlp_input_norm"),
    BlockNorms.AFTER: ("attention_norm", "mlp_norm"),
    BlockNorms.BOTH: ("input_norm", "attention_norm", "mlp_input_norm", "mlp_norm"),
}

Progress = Callable[[float], None]
"""Called with the loaded share, 0..1."""


class Allocate(Protocol):
    """Allocates memory for one tensor, initialized or not."""

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate."""


class TensorSource(Protocol):
    """Reads tensors by their checkpoint name."""

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out` with the tensor, converting the type."""

    def stored_type(self, name: str) -> TensorType | None:
        """Return the type of a matrix that `stored` can return; None for others."""
        return None

    def stored(self, *names: str) -> StoredWeight:
        """Return matrices of one type as they are stored, as one; its rows stay until this is called again.

        Raises:
            KeyError: they are not stored.
        """
        raise KeyError(names)


class DummySource(TensorSource):
    """Random weights of a realistic scale, the same for the same seed and device. For benchmarks and tests."""

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._generator = torch.Generator(device or "cpu").manual_seed(seed)

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out`: norms are 1, biases are small, matrices preserve the variance of their input."""
        if name.endswith("norm.weight"):
            out.fill_(1.0)
            return
        bound = 0.02 if out.dim() == 1 else (3.0 / out.shape[1]) ** 0.5
        out.uniform_(-bound, bound, generator=self._generator)


def load_weights(
    spec: ModelSpec,
    source: TensorSource,
    progress: Progress = lambda share: None,
    packer: Packer | None = None,
    allocate: Allocate = own_pages,
) -> DecoderWeights:
    """Load all weights in the spec's dtype; `packer` gets each matrix before the next is read. Engine thread; blocks.

    `allocate(*shape, dtype=)` returns the memory to read a tensor into, on any device.

    The largest matrices are loaded first, when there is memory for the matrix and its packed copy.
    """
    reader = _Reader(spec, source, progress, packer or PlainPacker(), allocate)
    embedding, head = reader.ends()
    layers = tuple(reader.layer(index) for index in range(spec.num_layers))
    return DecoderWeights(embedding, layers, reader.last_norm(), head)


@dataclass
class _Reader:
    """Reads the tensors of the decoder, those that are computed as one matrix into one."""

    spec: ModelSpec
    source: TensorSource
    progress: Progress
    packer: Packer
    allocate: Allocate

    def __post_init__(self) -> None:
        self.shapes, self.num_read = self.spec.tensor_shapes(), 0

    def read(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read one or several tensors, concatenated along the first dimension; `dtype` is by default the spec's."""
        ends = list(accumulate(self.shapes[name][0] for name in names))
        out = self.allocate(ends[-1], *self.shapes[names[0]][1:], dtype=dtype or DTYPES[self.spec.dtype])
        for name, begin, end in zip(names, [0, *ends], ends, strict=False):
            self.source.read(name, out[begin:end])
            self.num_read += 1
            self.progress(self.num_read / len(self.shapes))
        return out

    def matrix(self, *names: str) -> LinearWeight | StoredWeight:
        """Return matrices of one type, or of several types of numbers, as one: as they are stored if that will do."""
        if not self.is_packed_from_file(names):
            return LinearWeight(self.read(*names))
        weight = self.source.stored(*names)
        self.num_read += len(names)
        self.progress(self.num_read / len(self.shapes))
        return weight

    def is_packed_from_file(self, names: tuple[str, ...]) -> bool:
        """Return whether the packer takes matrices as they are stored."""
        if not self.packer.takes_stored:
            return False
        kinds = {self.source.stored_type(name) for name in names}
        own = STORED_DTYPES[self.spec.dtype]
        return all(kind is not None and (kind.is_grouped or kind.name == own) for kind in kinds)

    def group_type(self, name: str) -> TensorType | None:
        """Return the type of a matrix that stays quantized as it is stored; None for those that are numbers."""
        kind = self.source.stored_type(name) if self.packer.takes_stored else None
        return kind if kind is not None and kind.is_grouped else None

    def ends(self) -> tuple[Weight, Weight]:
        """Read the embedding and the output layer."""
        embedding = "model.embed_tokens.weight"
        if self.spec.tie_word_embeddings:
            return self.packer.tied(self.matrix(embedding))
        head = self.packer.head(self.matrix("lm_head.weight"))
        if self.group_type(embedding) is None:
            return LinearWeight(self.read(embedding)), head
        return self.packer.linear(self.matrix(embedding)), head

    def last_norm(self) -> Tensor:
        """Read the last norm, times the scale of the logits: in float32 then, because the product would be rounded."""
        return self._norm("model.norm.weight", self.spec.logit_scale)

    def layer(self, index: int) -> LayerWeights:
        """Read a layer."""
        prefix = f"model.layers.{index}."
        attention, experts = prefix + "self_attn.", self.spec.experts
        layer = self.spec.layers[index]
        order = head_order(self.spec.ropes[layer.rope], self.spec.head_dim)
        norms: dict[str, Tensor | None] = dict.fromkeys(_NORM_PLACES[BlockNorms.BOTH])
        for name, place in zip(self.spec.block_norms.value, _NORM_PLACES[self.spec.block_norms], strict=True):
            norms[place] = self._norm(f"{prefix}{name}.weight")
        return LayerWeights(
            qkv=self._linear(attention, ("q_proj", "k_proj", "v_proj"), order=order),
            qk_norm=self._qk_norm(attention, order),
            o=self._linear(attention, ("o_proj",)),
            mlp=self._experts(prefix, experts) if experts and layer.has_experts else self._mlp(f"{prefix}mlp."),
            **norms,
        )

    def _mlp(self, prefix: str) -> DenseMlp:
        gate_up = self._linear(prefix, ("gate_proj", "up_proj"), is_gated=True)
        return DenseMlp(gate_up=gate_up, down=self._linear(prefix, ("down_proj",)))

    def _experts(self, prefix: str, experts: ExpertSpec) -> ExpertMlp:
        """Read a mixture; each expert's matrices are packed before the next is read."""
        gate = [f"{prefix}{SHARED_GATE}.weight"] if experts.has_shared_gate else []
        router_ED = self.read(f"{prefix}{ROUTER}.weight", *gate, dtype=torch.float32)
        shared = self._mlp(f"{prefix}{SHARED_EXPERT}.") if experts.shared_width else None
        mlps = [self._mlp(f"{prefix}mlp.experts.{expert}.") for expert in range(experts.count)]
        gate_up, down = (ExpertWeights(each) for each in zip(*((mlp.gate_up, mlp.down) for mlp in mlps), strict=True))
        return ExpertMlp(router_ED, correction_E=None, gate_up=gate_up, down=down, shared=shared)

    def _norm(self, name: str, scale: float = 1.0) -> Tensor:
        """Read a norm, times `scale`: in float32 where stored numbers are changed, because that would be rounded."""
        offset = self.spec.norm_offset
        if not offset and scale == 1:
            return self.read(name)
        return self.read(name, dtype=torch.float32).add_(offset).mul_(scale)

    def _linear(
        self,
        prefix: str,
        names: tuple[str, ...],
        *,
        is_gated: bool = False,
        order: list[int] | None = None,
    ) -> Weight:
        """Read several matrices (and their biases, if they have some) as one matrix, concatenated by rows.

        Neighbours of one type become a part of it. `order` is that of the rows in each head of queries and keys, see
        rope.py.
        """
        kinds = groupby(names, lambda name: self.group_type(f"{prefix}{name}.weight"))
        parts = [tuple(part) for _, part in kinds]
        weights = tuple(
            self.packer.linear(self._part_of(prefix, part, order), is_gated=is_gated and len(parts) == 1)
            for part in parts
        )
        return weights[0] if len(weights) == 1 else StackedWeight(weights)

    def _part_of(self, prefix: str, names: tuple[str, ...], order: list[int] | None) -> LinearWeight | StoredWeight:
        weight = self.matrix(*(f"{prefix}{name}.weight" for name in names))
        biases = [f"{prefix}{name}.bias" for name in names]
        bias = self.read(*biases) if biases[0] in self.shapes else None
        if order is not None:
            for rows in (weight.weight if isinstance(weight, LinearWeight) else weight.rows, bias):
                if rows is not None:
                    self._reorder(rows, names, order)
        return replace(weight, bias=bias)

    def _reorder(self, rows: Tensor, names: tuple[str, ...], order: list[int]) -> None:
        """Reorder the rows of each query and key head: one head at a time, to need little memory."""
        index = torch.tensor(order, device=rows.device)
        counts = {"q_proj": self.spec.num_heads, "k_proj": self.spec.num_kv_heads}
        for head in torch.split(rows, self.spec.head_dim)[: sum(counts.get(name, 0) for name in names)]:
            head.copy_(head[index])

    def _qk_norm(self, prefix: str, order: list[int] | None) -> Tensor | None:
        if self.spec.qk_norm is QKNorm.NONE:
            return None
        q, k = (self._norm(f"{prefix}{name}.weight").view(-1, self.spec.head_dim) for name in ("q_norm", "k_norm"))
        heads = torch.cat([q.expand(self.spec.num_heads, -1), k.expand(self.spec.num_kv_heads, -1)])
        heads = heads if order is None else heads[:, order].contiguous()
        return heads.flatten() if self.spec.qk_norm is QKNorm.WHOLE else heads
