"""The real shapes of `cpu --families`, whose weights are dummies: metadata, tensors and their types. No torch.

Mixtures have some of their layers, since all would not fit. Types are those that `llama-quantize` chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

BLOCK = 256  # columns of the K types


class Norms(NamedTuple):
    """The norms of a layer, as their tensors are called, by their widths."""

    hidden: tuple[str, ...]
    queries: int = 0
    keys: int = 0


class Tensor(NamedTuple):
    """A tensor of a file: its shape, rows first, and the name of its type."""

    name: str
    shape: tuple[int, ...]
    kind: str


class Dummy(NamedTuple):
    """A model's shape.

    Attributes:
        architecture: as GGUF files name it.
        experts: how many there are, and how many compute a token; (0, 0): it is dense.
        width: of the gated activations, those of one expert.
        norms: of a layer.
        is_tied: whether the embedding is the output head.
        extras: metadata that others lack, without the architecture.
    """

    architecture: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    width: int
    vocab_size: int
    rope_base: float
    norms: Norms
    experts: tuple[int, int] = (0, 0)
    is_tied: bool = False
    extras: Mapping[str, int] = {}

    @property
    def is_mixture(self) -> bool:
        """Whether it has experts."""
        return self.experts[0] > 0

    def metadata(self) -> dict[str, int | float]:
        """Return the metadata of the file but for names and tokens."""
        values: dict[str, int | float] = {
            "block_count": self.num_layers,
            "context_length": 4096,
            "embedding_length": self.hidden,
            "feed_forward_length": self.width,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_base,
            **self.extras,
        }
        if self.is_mixture:
            values |= {"expert_count": self.experts[0], "expert_used_count": self.experts[1]}
        return {f"{self.architecture}.{name}": value for name, value in values.items()}

    def tensors(self, form: str) -> Iterator[Tensor]:
        """Yield the tensors of a file of the format `form`, one that `llama-quantize` knows."""
        head = "output" if not self.is_tied else "token_embd"
        yield self._matrix("token_embd", (self.vocab_size, self.hidden), form, head == "token_embd")
        yield _vector("output_norm", self.hidden)
        if not self.is_tied:
            yield self._matrix("output", (self.vocab_size, self.hidden), form, has_more=True)
        for index in range(self.num_layers):
            yield from self._layer(f"blk.{index}.", form, has_more_bits(index, self.num_layers))

    def _layer(self, prefix: str, form: str, has_more: bool) -> Iterator[Tensor]:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield from (_vector(prefix + name, self.hidden) for name in self.norms.hidden)
        if self.norms.queries:
            yield _vector(prefix + "attn_q_norm", self.norms.queries)
            yield _vector(prefix + "attn_k_norm", self.norms.keys)
        yield self._matrix(prefix + "attn_q", (queries, self.hidden), form)
        yield self._matrix(prefix + "attn_k", (keys, self.hidden), form)
        yield self._matrix(prefix + "attn_v", (keys, self.hidden), form, has_more)
        yield self._matrix(prefix + "attn_output", (self.hidden, queries), form)
        count, suffix = self.experts[0], "_exps" if self.experts[0] else ""
        of_experts = (count,) if count else ()
        if count:
            yield Tensor(prefix + "ffn_gate_inp.weight", (count, self.hidden), "F32")
        for name in ("ffn_gate", "ffn_up"):
            yield self._matrix(prefix + name + suffix, (*of_experts, self.width, self.hidden), form)
        yield self._matrix(prefix + "ffn_down" + suffix, (*of_experts, self.hidden, self.width), form, has_more)

    def _matrix(self, name: str, shape: tuple[int, ...], form: str, has_more: bool = False) -> Tensor:
        return Tensor(name + ".weight", shape, self._kind(name, shape[-1], form, has_more))

    def _kind(self, name: str, num_columns: int, form: str, has_more: bool) -> str:
        if form != "Q4_K_M":
            return form
        if self.experts[0] == 8 and name.endswith(("attn_k", "attn_v")):
            return "Q8_0"
        if self.experts[0] == 8 and name.endswith("attn_output"):
            return "Q5_K"
        if num_columns % BLOCK:
            return "Q8_0" if has_more else "Q5_0"
        return "Q6_K" if has_more else "Q4_K"


def has_more_bits(index: int, num_layers: int) -> bool:
    """Return whether values and down projections of a layer get more bits in Q4_K_M files."""
    eighth = num_layers // 8
    return index < eighth or index >= 7 * num_layers // 8 or (index - eighth) % 3 == 2


def _vector(name: str, size: int) -> Tensor:
    return Tensor(name + ".weight", (size,), "F32")


_BEFORE, _AFTER = ("attn_norm", "ffn_norm"), ("post_attention_norm", "post_ffw_norm")

DUMMIES: Mapping[str, Dummy] = {
    # 8 of the 48 layers of Qwen3-30B-A3B.
    "qwen3moe": Dummy(
        "qwen3moe", 8, 2048, 32, 4, 128, 768, 151_936, 1e6, Norms(_BEFORE, 128, 128), experts=(128, 8),
        extras={"expert_feed_forward_length": 768},
    ),
    # 4 of the 32 layers of Mixtral 8x7B.
    "mixtral": Dummy("llama", 4, 4096, 32, 8, 128, 14_336, 32_000, 1e6, Norms(_BEFORE), experts=(8, 2)),
    # Gemma 3 1B and OLMo 2 1B.
    "gemma3": Dummy(
        "gemma3", 26, 1152, 4, 1, 256, 6912, 262_144, 1e6, Norms((*_BEFORE, *_AFTER), 256, 256), is_tied=True,
        extras={"attention.sliding_window": 512},
    ),
    "olmo2": Dummy("olmo2", 16, 2048, 16, 16, 128, 8192, 100_352, 5e5, Norms(_AFTER, 2048, 2048)),
}  # fmt: skip
"""By the name of the shape."""
