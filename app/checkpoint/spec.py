"""The shape of a model as one frozen `ModelSpec`: the families of models differ only in its fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ROUTER, SHARED_GATE, SHARED_EXPERT = "mlp.gate", "mlp.shared_expert_gate", "mlp.shared_expert"
"""The names of a mixture's modules beside its experts, which are `mlp.experts.0` and so on."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: base, kind of scaling (default, linear, llama3, yarn, divisors or none), its parameters.

    `divisors` are those of the frequencies, one for each pair of numbers that turns. Only the first `rotary_dim` of a
    head's numbers turn; None: all. Pairs are number i of these and number i of their second half, or neighbours.
    Nothing turns with the kind none.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    rotary_dim: int | None = None
    has_neighbour_pairs: bool = False


NO_ROPE = RopeSpec(theta=1.0, kind="none")
"""Of layers that see positions only by the causal order."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The differences of layers: the sliding window in tokens, None = full attention; the index in `ropes`.

    With `has_experts` the MLP is a mixture of experts.
    """

    window: int | None = None
    rope: int = 0
    has_experts: bool = False


class BlockNorms(Enum):
    """Where a layer normalizes: what its blocks (attention, MLP) read, what they add to the residual, or both."""

    BEFORE = ("input_layernorm", "post_attention_layernorm")
    AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
    BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class QKNorm(Enum):
    """How queries and keys are normalized: not at all, each head alone, or all heads together before they are split."""

    NONE = 0
    HEADS = 1
    WHOLE = 2


class Activation(Enum):
    """The function of the gate of an MLP: x · sigmoid(x), or GELU by its approximation with tanh."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class RouterScores(Enum):
    """How experts are scored: softmax or sigmoid of the router's product, or softmax of the chosen ones alone."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    CHOSEN_SOFTMAX = "chosen_softmax"


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts: each token is computed by `per_token` of `count` MLPs of this `width`.

    They are those of the highest scores, of `groups_per_token` of as many `groups`: the ones with the highest sums of
    their two best scores. Their results are multiplied by their scores, divided before by the sum of the chosen scores
    if `is_normalized`, and by `scale`. An MLP of `shared_width` computes every token, if that is not 0; with
    `has_shared_gate` the router's last row says how much of it is added.
    """

    count: int
    per_token: int
    width: int
    scores: RouterScores = RouterScores.SOFTMAX
    is_normalized: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    shared_width: int = 0
    has_shared_gate: bool = False


class QueryScale(NamedTuple):
    """Queries at position p are multiplied by 1 + beta · ln(1 + floor(p / original_max_position))."""

    original_max_position: int
    beta: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only model.

    Embeddings are multiplied by `embedding_scale`, what layers add to the residual by `residual_multiplier`, logits by
    `logit_scale`. `attention_scale` multiplies the products of queries and keys; None: 1 / sqrt(head_dim). A cap c
    makes c · tanh(x / c) of these products (`attention_softcap`) and of the logits (`logit_softcap`). The stored
    weights of all norms lack `norm_offset`. `defaults` are the parameters of sampling that the files name.
    `intermediate_size` is the width of MLPs, those of layers with `experts` apart.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    ropes: tuple[RopeSpec, ...]
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: QKNorm
    layers: tuple[LayerSpec, ...]
    dtype: str
    eos_token_ids: tuple[int, ...]
    defaults: Mapping[str, float]
    embedding_scale: float = 1.0
    residual_multiplier: float = 1.0
    attention_scale: float | None = None
    logit_scale: float = 1.0
    block_norms: BlockNorms = BlockNorms.BEFORE
    norm_offset: float = 0.0
    activation: Activation = Activation.SILU
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    query_scale: QueryScale | None = None
    experts: ExpertSpec | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def mlp_width(self) -> int:
        """Width of the widest MLP that computes every token; 0 if experts compute all."""
        widths = [self.intermediate_size for layer in self.layers if not layer.has_experts]
        return max(widths, default=0) if self.experts is None else max([*widths, self.experts.shared_width])

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of all tensors in the checkpoint."""
        d = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, d),
            "model.norm.weight": (d,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, d)
        attention = {
            "self_attn.q_proj": (self.q_size, d, self.qkv_bias),
            "self_attn.k_proj": (self.kv_size, d, self.qkv_bias),
            "self_attn.v_proj": (self.kv_size, d, self.qkv_bias),
            "self_attn.o_proj": (d, self.q_size, self.o_bias),
        }
        dense = _mlp("mlp", self.intermediate_size, d, self.mlp_bias)
        mixture = {} if self.experts is None else _mixture(self.experts, d)
        norms = dict.fromkeys(self.block_norms.value, d)
        if self.qk_norm is QKNorm.HEADS:
            norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        if self.qk_norm is QKNorm.WHOLE:
            norms |= {"self_attn.q_norm": self.q_size, "self_attn.k_norm": self.kv_size}
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}."
            for name, (rows, columns, has_bias) in (attention | (mixture if layer.has_experts else dense)).items():
                shapes[f"{prefix}{name}.weight"] = (rows, columns)
                if has_bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
            for name, width in norms.items():
                shapes[f"{prefix}{name}.weight"] = (width,)
        return shapes

    def num_parameters(self) -> int:
        """Return the number of weights."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())


_Linears = dict[str, tuple[int, int, bool]]
"""Rows and columns of matrices, and whether they have biases, by their names."""


def _mlp(name: str, width: int, d: int, has_bias: bool = False) -> _Linears:
    return {
        f"{name}.gate_proj": (width, d, has_bias),
        f"{name}.up_proj": (width, d, has_bias),
        f"{name}.down_proj": (d, width, has_bias),
    }


def _mixture(experts: ExpertSpec, d: int) -> _Linears:
    """Return the matrices of a mixture; those of each expert by themselves, however they are stored."""
    linears = {ROUTER: (experts.count, d, False)}
    if experts.has_shared_gate:
        linears[SHARED_GATE] = (1, d, False)
    if experts.shared_width:
        linears |= _mlp(SHARED_EXPERT, experts.shared_width, d)
    for expert in range(experts.count):
        linears |= _mlp(f"mlp.experts.{expert}", experts.width, d)
    return linears
