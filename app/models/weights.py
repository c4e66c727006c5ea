"""The decoder's weights as it uses them: query/key/value and gate/up fused into one product each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from app.kernels.ops import LinearWeight, Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qk_norm` is [N+G, H]: the query norm's weight for each query head, then the key norm's."""

    input_norm: Tensor
    qkv: Weight
    qk_norm: Tensor | None
    o: Weight
    post_norm: Tensor
    gate_up: Weight
    down: Weight

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        vectors = (self.input_norm, self.post_norm, *(() if self.qk_norm is None else (self.qk_norm,)))
        matrices = (self.qkv, self.o, self.gate_up, self.down)
        return sum(int(vector.nbytes) for vector in vectors) + sum(matrix.num_bytes for matrix in matrices)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The whole decoder; `lm_head` is the embedding, or shares its memory, when the model ties them."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Weight

    @property
    def num_bytes(self) -> int:
        """Memory that they take; what is there for two purposes counts once."""
        ends = {id(weight): weight.num_bytes for weight in (self.embedding, self.lm_head)}
        return sum(ends.values()) + self.norm.nbytes + sum(layer.num_bytes for layer in self.layers)


class Packer(Protocol):
    """Brings weights into the form that the ops read. It gets each as soon as it is loaded, and may drop the original.

    Engine thread only.
    """

    def linear(self, weight: LinearWeight, *, is_gated: bool = False) -> Weight:
        """Return a matrix for `Ops.linear` and `Ops.logits`; `is_gated`: its halves go through `Ops.silu_mul`."""

    def tied(self, table: LinearWeight) -> tuple[Weight, Weight]:
        """Return one matrix as an embedding, and as the output layer."""


class Plain:
    """Leaves weights as they are."""

    def linear(self, weight: LinearWeight, *, is_gated: bool = False) -> Weight:
        """See Packer.linear."""
        return weight

    def tied(self, table: LinearWeight) -> tuple[Weight, Weight]:
        """See Packer.tied."""
        return table, table
