"""The decoder's weights, with query/key/value and gate/up fused into one matrix each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from app.kernels.ops import GroupedWeight, LinearWeight, Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qk_norm` is [N+G, H]: the weight of the query norm for each query head, then that of the key norm."""

    input_norm: Tensor
    qkv: Weight
    qk_norm: Tensor | None
    o: Weight
    post_norm: Tensor
    gate_up: Weight
    down: Weight

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights of the layer."""
        vectors = (self.input_norm, self.post_norm, *(() if self.qk_norm is None else (self.qk_norm,)))
        matrices = (self.qkv, self.o, self.gate_up, self.down)
        return sum(int(vector.nbytes) for vector in vectors) + sum(matrix.num_bytes for matrix in matrices)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights; with tied embeddings `lm_head` is the embedding, or shares its memory."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Weight

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; a shared embedding counts once."""
        ends = {id(weight): weight.num_bytes for weight in (self.embedding, self.lm_head)}
        return sum(ends.values()) + self.norm.nbytes + sum(layer.num_bytes for layer in self.layers)


class Packer(Protocol):
    """Converts weights to the layout that the ops read, each one after it is loaded; the original may be dropped.

    Engine thread only. The methods of a subclass that does not override them return the weights as they are.
    """

    keeps_groups: bool = False
    """Whether the methods also take weights that are quantized in groups; else these are decoded before."""

    def linear(self, weight: LinearWeight | GroupedWeight, *, is_gated: bool = False) -> Weight:
        """Return a matrix for `Ops.linear`; with `is_gated` its halves are for `Ops.silu_mul`."""
        return weight

    def head(self, weight: LinearWeight | GroupedWeight) -> Weight:
        """Return a matrix for `Ops.logits`."""
        return weight

    def tied(self, table: LinearWeight | GroupedWeight) -> tuple[Weight, Weight]:
        """Return the tied matrix as the embedding, and as the output layer."""
        return table, table


class PlainPacker(Packer):
    """Does not change the weights."""
