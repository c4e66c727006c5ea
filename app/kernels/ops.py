"""The Ops protocol: every operation a model may use, each writing into `out=`.

Models contain no tensor arithmetic of their own, so the same model code can be run eagerly, recorded, or captured.

Shape suffixes: T = token rows of a step (padded to a multiple of ROW_MULTIPLE), R = rows whose logits are wanted
(padded likewise), D = model width, F = MLP width, V = vocabulary, N = query heads, G = key/value heads, H = head
width, B = KV blocks, K = slots per block, S = state rows, X = any width, L = layers, C = copies of blocks, E = experts,
A = experts of a row, J = all pairs of a row and one of its experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec
from app.checkpoint.tensor_types import TensorType

# Matrix products of 1, 2, 3 or 7 rows differ bitwise from larger ones in stock torch; multiples of 8 never did in any
# combination tried (docs/design/cpu.md, "Batch invariance").
ROW_MULTIPLE = 8


def pad_rows(count: int) -> int:
    """Round a number of rows up to the next multiple of ROW_MULTIPLE."""
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


class Weight:
    """A matrix as an implementation of `Ops` keeps it: a plain `LinearWeight`, or packed in its own way."""

    __slots__ = ()

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LinearWeight(Weight):
    """One matrix product's weight [out features, in features] and bias [out features] or None."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that the tensors take."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class StoredWeight(Weight):
    """A matrix [out features, in features] as files store it: numbers, or blocks that are quantized in groups.

    Each row stands somewhere in memory, such as in a mapped file. `owner` keeps the rows there, if it is not None; else
    whoever made the weight says how long they stay.
    """

    kind: TensorType
    num_columns: int
    rows: Tensor  # int64 [out features]: where each row begins
    bias: Tensor | None = None
    owner: Tensor | None = None

    @classmethod
    def of(cls, kind: TensorType, stored: Tensor, bias: Tensor | None = None) -> StoredWeight:
        """Return the matrix whose rows are those of `stored`: uint8 [out features, bytes of a row], contiguous."""
        num_rows, row_bytes = stored.shape
        rows = stored.data_ptr() + row_bytes * torch.arange(num_rows)
        return cls(kind, row_bytes // kind.block_bytes * kind.block_size, rows, bias, stored)

    @property
    def num_bytes(self) -> int:
        """Memory that the rows and the bias take."""
        return len(self.rows) * self.kind.num_bytes(self.num_columns) + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class StackedWeight(Weight):
    """A matrix whose rows are stored in several ways: its parts follow each other in the result of a product."""

    parts: tuple[Weight, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that the parts take."""
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ExpertWeights(Weight):
    """The matrices of one kind of all experts: all gates and ups, or all downs."""

    matrices: tuple[Weight, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that the matrices take."""
        return sum(matrix.num_bytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class Routes:
    """Which experts compute each row, and the rows of each expert. The padding rows of a step have none.

    Pair J of row t and its a-th expert is t · A + a. `pairs_J` lists the pairs by expert, those of an expert by row:
    expert e has those from `starts_E1[e]` to before `starts_E1[e + 1]`; what is after the last is undefined.
    """

    experts_TA: Tensor  # int32, ascending
    scores_TA: Tensor  # float32: what the results of these experts are multiplied by
    shared_T: Tensor  # float32: what that of the shared expert is multiplied by
    pairs_J: Tensor  # int32
    starts_E1: Tensor  # int32 [E + 1]

    def first(self, num_rows: int) -> Routes:
        """Return views of the first rows."""
        num_pairs = num_rows * self.experts_TA.shape[1]
        rows = (self.experts_TA[:num_rows], self.scores_TA[:num_rows], self.shared_T[:num_rows])
        return Routes(*rows, self.pairs_J[:num_pairs], self.starts_E1)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the token rows of one step stand.

    A row is (token, position, sequence): decode, prefill chunks and mixtures are the same list. The rows of one
    sequence are adjacent and in position order. `num_tokens` rows are real; the padding after them has position 0 and
    is never written to the cache.

    On a GPU, where a captured step serves many batches, `num_tokens` is the number of all rows, padding has position
    -1 in state row 0, the integers are int32, and `work` lists what attention has to do
    (kernels/triton/attention/work.py); it is None in a step in which every row is a sequence of its own and samples
    from its own logits. `num_splits` is among how many programs attention is shared out: each row's of such a step, in
    any other that of all rows which decode.
    """

    num_tokens: int
    positions_T: Tensor  # int64
    state_rows_T: Tensor  # int64: which row of block_tables each token belongs to
    block_tables_SB: Tensor  # int32: block ids of every state row
    block_size: int
    work: Tensor | None = None
    num_splits: int = 1


class Ops(Protocol):
    """One implementation per device. Engine thread only; all tensors on the implementation's device."""

    def begin_step(self, batch: PagedBatch) -> None:
        """Prepare what all layers of this step share (slots, masks, gather lists); called once before the model."""

    def embed(self, ids_T: Tensor, table: Weight, scale: float, *, out: Tensor) -> None:
        """Look up the rows of `table` [V, D]: out[T, D] = scale · row, rounded to the type of `out`."""

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        """Compute out = weight · x / rms(x), the mean square taken in float32; `out` may be `x`, also some columns."""

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        """Compute residual += x, in place; out = rms_norm(residual), or the residual itself without a weight."""

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        """Compute out = x · weightᵀ + bias."""

    def qk_norm_rope_kv_write(
        self,
        qkv_TX: Tensor,
        norm_weight: Tensor | None,
        eps: float,
        rope_PH: Tensor,
        k_cache_BKGH: Tensor,
        v_cache_BKGH: Tensor,
        query_scale_P: Tensor | None = None,
        *,
        out: Tensor,
    ) -> None:
        """Normalize (given `norm_weight` [N+G, H]) and rotate queries and keys; write keys and values to the cache.

        `qkv_TX` holds N query, G key and G value heads; `rope_PH` holds cos then sin of each position, half a head
        width each. out[T, N, H] are the queries, times `query_scale_P` (float32) of their positions.
        """

    def paged_attention(
        self,
        q_TNH: Tensor,
        k_cache_BKGH: Tensor,
        v_cache_BKGH: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        *,
        out: Tensor,
    ) -> None:
        """Compute causal attention of every row over its own sequence in the paged cache; out[T, N, H].

        A row at position p sees positions max(0, p - window + 1) .. p. A product s of a query and a key, times `scale`,
        becomes softcap · tanh(s / softcap). The order of summation depends on the position
        alone, never on the other rows, so decode and any chunking of a prefill give the same bits.
        """

    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        """Compute out[T, F] = silu(gate) · up, where gate and up are the halves of the input."""

    def gelu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        """Compute out[T, F] = gelu(gate) · up for the halves of the input.

        gelu(x) = x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
        """

    def route(
        self, x_TD: Tensor, router_ED: Tensor, correction_E: Tensor | None, experts: ExpertSpec, *, out: Routes
    ) -> None:
        """Choose the experts of each row, see `ExpertSpec`; equal scores go to the lowest number.

        `router_ED` is float32, and all is computed so; with `experts.has_shared_gate` its last row is the shared
        expert's, whose factor is the sigmoid of the product, else 1. `correction_E` (float32) is added to the scores
        for choosing alone. Sums of scores are taken by ascending expert.
        """

    def expert_gate_up(self, x_TD: Tensor, routes: Routes, experts: ExpertWeights, *, out: Tensor) -> None:
        """Compute out[J, F] = silu(gate) · up of each pair of a row and an expert, in the order of `routes.pairs_J`."""

    def expert_down(
        self, activated_JF: Tensor, routes: Routes, experts: ExpertWeights, shared_TD: Tensor | None, *, out: Tensor
    ) -> None:
        """Compute out[T, D] = the row's shared factor · `shared_TD` + Σ score · expert's product, by ascending expert.

        Without `shared_TD`, which may be `out`, the sum begins with 0. It is taken in float32 and rounded once, so the
        bits of a row do not depend on others.
        """

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        """Compute out = cap · tanh(x / cap) in float32; `out` may be `x`."""

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        """Compute out[R, D] = x[rows]."""

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        """Compute out[R, V] in float32 = x · weightᵀ."""

    def copy_blocks(self, copies_C2: Tensor, *, out: Tensor) -> None:
        """Block `target` becomes block `source` of the same cache out[L, 2, B, K, G, H], for each (source, target).

        The copies may go in any order: no target is a source, or a target again. `copies_C2` is int64 on the CPU.
        """

    def swap_blocks(self, blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
        """Block `target` of `out` becomes block `source` of `blocks`, for each (source, target), in any order.

        Both are caches [L, 2, B, K, G, H] of any strides and numbers of blocks, one of them in host memory; their
        other sizes and types are equal.
        """
