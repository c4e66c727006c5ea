"""The best that a GPU allows: bytes over bandwidth, operations over matrix speed. No torch.

What is left out makes these limits lower ones: activations, launches, the head's second operand, softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BF16, FP8 = 2, 1  # bytes of a number


class Ceilings(NamedTuple):
    """What one GPU was measured to do per second: bytes that a copy reads and writes, bf16 operations of a product."""

    bandwidth: float
    operations: float


H200 = Ceilings(4.3e12, 790e12)
"""An H200 as others measured it, for where S0 did not run."""


class Work(NamedTuple):
    """What must be moved and computed; the two go on side by side."""

    num_bytes: float
    operations: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder-only model with a gated MLP."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    is_tied: bool

    @property
    def linears(self) -> int:
        """Weights of all layers' matrices."""
        attention = 2 * self.num_heads * self.head_dim + 2 * self.num_kv_heads * self.head_dim
        return self.num_layers * self.hidden * (attention + 3 * self.ffn)

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.hidden * self.vocab

    @property
    def weight_bytes(self) -> int:
        """The bytes of bf16 weights that a decode step reads; rows of the embedding are few."""
        return BF16 * (self.linears + self.head)

    def kv_bytes(self, item: int = BF16) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * item

    def attention_operations(self, pairs: float) -> float:
        """Products of attention over so many (query, key) pairs in all layers."""
        return 4.0 * pairs * self.num_heads * self.head_dim * self.num_layers


def decode_work(shape: Shape, contexts: Sequence[int], kv_item: int = BF16) -> tuple[Work, Work]:
    """A step of one token for each of the contexts: its products with weights, then attention.

    One waits for the other in every layer, so the bytes of attention do not hide behind the operations of products.
    """
    num_tokens, num_seen = len(contexts), sum(contexts)
    products = Work(shape.weight_bytes, 2.0 * num_tokens * (shape.linears + shape.head))
    return products, Work(num_seen * shape.kv_bytes(kv_item), shape.attention_operations(num_seen))


def prefill_work(shape: Shape, lengths: Sequence[int]) -> Work:
    """Complete prompts, each with its last row's logits; causal attention sees half of the square."""
    num_pairs = sum(length * length / 2 for length in lengths)
    operations = 2.0 * sum(lengths) * shape.linears + 2.0 * len(lengths) * shape.head
    return Work(shape.weight_bytes, operations + shape.attention_operations(num_pairs))


def load_work(shape: Shape, lengths: Sequence[int], num_new: Sequence[int], kv_item: int = BF16) -> tuple[Work, Work]:
    """All prompts, then all decode steps of a load whose requests run side by side from the first step to their last.

    The weights are read in as many steps as the longest output has tokens; the KV cache by every sampled token.
    """
    num_seen = sum(new * length + new * (new - 1) // 2 for length, new in zip(lengths, num_new, strict=True))
    num_bytes = max(num_new) * shape.weight_bytes + num_seen * shape.kv_bytes(kv_item)
    return prefill_work(shape, lengths), Work(num_bytes)


def seconds(work: Sequence[Work], ceilings: Ceilings) -> float:
    """The least time for pieces of work one after another."""
    return sum(max(part.num_bytes / ceilings.bandwidth, part.operations / ceilings.operations) for part in work)
