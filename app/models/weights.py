"""The decoder's weights, with query/key/value and gate/up fused into one matrix each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from app.kernels.ops import ExpertWeights, LinearWeight, StoredWeight, Weight


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """The MLP of a layer without experts."""

    gate_up: Weight
    down: Weight

    @property
    def num_bytes(self) -> int:
        """Bytes of its matrices."""
        return self.gate_up.num_bytes + self.down.num_bytes


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """The MLP of a layer with experts, and the one that computes every token, if there is one.

    `router_ED` is float32; with a gate of the shared expert, that is its last row.
    """

    router_ED: Tensor
    correction_E: Tensor | None
    gate_up: ExpertWeights
    down: ExpertWeights
    shared: DenseMlp | None

    @property
    def num_bytes(self) -> int:
        """Bytes of all its weights."""
        vectors = sum(int(each.nbytes) for each in (self.router_ED, self.correction_E) if each is not None)
        shared = 0 if self.shared is None else self.shared.num_bytes
        return vectors + self.gate_up.num_bytes + self.down.num_bytes + shared


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer.

    `qk_norm` holds the weight of the query norm, then that of the key norm: [N+G, H], the same for each head of a kind,
    or [(N+G) · H], if all heads are normalized together. `attention_norm` and `mlp_norm` are of what the blocks add to
    the residual, the input norms of what they read; None where the spec's `block_norms` has none.
    """

    input_norm: Tensor | None
    qkv: Weight
    qk_norm: Tensor | None
    o: Weight
    attention_norm: Tensor | None
    mlp_input_norm: Tensor | None
    mlp: DenseMlp | ExpertMlp
    mlp_norm: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights of the layer."""
        norms = (self.input_norm, self.qk_norm, self.attention_norm, self.mlp_input_norm, self.mlp_norm)
        vectors = sum(int(norm.nbytes) for norm in norms if norm is not None)
        return vectors + self.qkv.num_bytes + self.o.num_bytes + self.mlp.num_bytes


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

    @property
    def expert_share(self) -> float:
        """The share of the experts in the bytes that a step over many tokens reads."""
        mixtures = [layer.mlp for layer in self.layers if isinstance(layer.mlp, ExpertMlp)]
        experts = sum(mlp.gate_up.num_bytes + mlp.down.num_bytes for mlp in mixtures)
        # Of an embedding that is not the output layer, a step reads a few rows.
        return experts / (self.lm_head.num_bytes + sum(layer.num_bytes for layer in self.layers))


class Packer(Protocol):
    """Converts weights to the layout that the ops read, each one after it is loaded; the original may be dropped.

    Engine thread only. The methods of a subclass that does not override them return the weights as they are.
    """

    takes_stored: bool = False
    """Whether the methods also take weights as files store them, if they are groups or numbers of the model's type."""

    def linear(self, weight: LinearWeight | StoredWeight, *, is_gated: bool = False) -> Weight:
        """Return a matrix for `Ops.linear`; with `is_gated` its halves are for `Ops.silu_mul` or `gelu_mul`."""
        return weight

    def head(self, weight: LinearWeight | StoredWeight) -> Weight:
        """Return a matrix for `Ops.logits`."""
        return weight

    def tied(self, table: LinearWeight | StoredWeight) -> tuple[Weight, Weight]:
        """Return the tied matrix as the embedding, and as the output layer."""
        return table, table


class PlainPacker(Packer):
    """Does not change the weights."""
