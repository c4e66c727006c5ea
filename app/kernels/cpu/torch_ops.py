"""The CPU implementation of `Ops` in eager torch: needs no compiler, and gives equal bits in any company.

What a row's bits may depend on is the row alone. Three rules keep it so, each measured (docs/design/cpu.md):
matrix products only ever see row counts that are multiples of ROW_MULTIPLE, and at least LEAST_ROWS; sums over the
context are taken over fixed tiles aligned to position 0, in order; functions with a vector and a scalar form (silu,
gelu) are called on slabs small enough that torch does not split them at places that depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec
from app.kernels.cpu.attention import AttentionPlan, paged_attention
from app.kernels.cpu.routing import choose, sigmoid
from app.kernels.cpu.scratch import Scratch
from app.kernels.ops import ExpertWeights, LinearWeight, PagedBatch, Routes, Weight, pad_rows

# ATen splits elementwise work over threads above this many elements (at::internal::GRAIN_SIZE).
_GRAIN_ELEMENTS = 32768
# On processors with AVX-512 and without AMX float32 products of 8 rows differ bitwise from larger ones.
LEAST_ROWS = 16


class TorchOps:
    """Implements `Ops` (see there for shapes). Engine thread only; its scratch memory grows to the largest step."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._plan: AttentionPlan | None = None

    def begin_step(self, batch: PagedBatch) -> None:
        self._plan = AttentionPlan(batch)

    @property
    def plan(self) -> AttentionPlan:
        """The current step's plan."""
        assert self._plan is not None, "begin_step comes first"
        return self._plan

    def embed(self, ids_T: Tensor, table: Weight, scale: float, *, out: Tensor) -> None:
        assert isinstance(table, LinearWeight)
        torch.index_select(table.weight, 0, ids_T, out=out)
        if scale != 1:
            out.mul_(scale)

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        x = self._scratch.like("norm_x", x_TD, torch.float32)
        square = self._scratch.like("norm_square", x_TD, torch.float32)
        mean = self._scratch.get("norm_mean", (*x_TD.shape[:-1], 1), torch.float32)
        x.copy_(x_TD)
        torch.mul(x, x, out=square)
        torch.mean(square, dim=-1, keepdim=True, out=mean)
        mean.add_(eps).rsqrt_()
        x.mul_(mean)
        if out.dtype == torch.float32:
            torch.mul(x, weight_D, out=out)
        else:
            out.copy_(x)
            out.mul_(weight_D)

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        residual_TD.add_(x_TD)
        if weight_D is None:
            out.copy_(residual_TD)
        else:
            self.rms_norm(residual_TD, weight_D, eps, out=out)

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        assert isinstance(weight, LinearWeight)
        self._multiply(x_TX, weight.weight, weight.bias, out=out)

    def _multiply(self, x_TX: Tensor, weight_YX: Tensor, bias_Y: Tensor | None = None, *, out: Tensor) -> None:
        """Multiply rows with those of a matrix; few rows with zeros below them."""
        num_rows = len(x_TX)
        if num_rows < LEAST_ROWS:
            x = self._scratch.get("few_rows", (LEAST_ROWS, x_TX.shape[1]), x_TX.dtype)
            product = self._scratch.get("few_products", (LEAST_ROWS, out.shape[1]), out.dtype)
            x[:num_rows].copy_(x_TX)
            x[num_rows:].zero_()
            self._multiply(x, weight_YX, bias_Y, out=product)
            out.copy_(product[:num_rows])
        elif bias_Y is None:
            torch.mm(x_TX, weight_YX.t(), out=out)
        else:
            torch.addmm(bias_Y, x_TX, weight_YX.t(), out=out)

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
        plan = self.plan
        num_heads, head_dim = out.shape[1], out.shape[2]
        num_rotated = num_heads + k_cache_BKGH.shape[2]
        heads = qkv_TX.view(len(out), -1, head_dim)
        qk, v = heads[:, :num_rotated], heads[:, num_rotated:]
        if norm_weight is not None:
            normed = self._scratch.like("qk_normed", qk, qk.dtype)
            self.rms_norm(qk, norm_weight, eps, out=normed)
            qk = normed
        rotated = self._scratch.like("qk_rotated", qk, qk.dtype)
        self._rotate(qk, plan.rope(rope_PH), rotated)
        out.copy_(rotated[:, :num_heads])
        if query_scale_P is not None:
            out.mul_(plan.query_scale(query_scale_P))
        real = plan.num_tokens
        k_cache_BKGH.flatten(0, 1).index_copy_(0, plan.slots, rotated[:real, num_heads:])
        # A value that overflowed must not poison later owners of the block, whose masked slots multiply it by zero.
        finite = torch.nan_to_num(v[:real], out=self._scratch.like("v_finite", v[:real], v.dtype))
        v_cache_BKGH.flatten(0, 1).index_copy_(0, plan.slots, finite)

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
        plan = self.plan
        out[plan.num_tokens :].zero_()
        paged_attention(q_TNH, k_cache_BKGH, v_cache_BKGH, scale, plan, window, softcap, self._scratch, out)

    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        _gate(torch.ops.aten.silu.out, gate_up_TX, out)

    def gelu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        _gate(partial(torch.ops.aten.gelu.out, approximate="tanh"), gate_up_TX, out)

    def route(
        self, x_TD: Tensor, router_ED: Tensor, correction_E: Tensor | None, experts: ExpertSpec, *, out: Routes
    ) -> None:
        x, products = x_TD, self._scratch.get("router", (len(x_TD), len(router_ED)), torch.float32)
        if x.dtype != torch.float32:
            x = self._scratch.like("router_x", x_TD, torch.float32)
            x.copy_(x_TD)
        self._multiply(x, router_ED, out=products)
        choose(products, correction_E, experts, self.plan.num_tokens, out)
        if experts.has_shared_gate:
            out.shared_T.copy_(sigmoid(products[:, experts.count :])[:, 0])
        else:
            out.shared_T.fill_(1.0)

    def expert_gate_up(self, x_TD: Tensor, routes: Routes, experts: ExpertWeights, *, out: Tensor) -> None:
        width = out.shape[1]
        for weight, begin, end, pairs in _of_experts(routes, experts):
            num_rows = pad_rows(end - begin)
            x = self._scratch.get("expert_x", (num_rows, x_TD.shape[1]), x_TD.dtype)
            gate_up = self._scratch.get("expert_gate_up", (num_rows, 2 * width), x_TD.dtype)
            activated = self._scratch.get("expert_activated", (num_rows, width), out.dtype)
            x[end - begin :].zero_()
            torch.index_select(x_TD, 0, pairs // routes.experts_TA.shape[1], out=x[: end - begin])
            self.linear(x, weight, out=gate_up)
            self.silu_mul(gate_up, out=activated)
            out[begin:end].copy_(activated[: end - begin])

    def expert_down(
        self, activated_JF: Tensor, routes: Routes, experts: ExpertWeights, shared_TD: Tensor | None, *, out: Tensor
    ) -> None:
        sums = self._scratch.like("expert_sums", out, torch.float32)
        if shared_TD is None:
            sums.zero_()
        else:
            sums.copy_(shared_TD).mul_(routes.shared_T[:, None])
        scores = routes.scores_TA.flatten()
        for weight, begin, end, pairs in _of_experts(routes, experts):
            num_rows = pad_rows(end - begin)
            x = self._scratch.get("expert_activated", (num_rows, activated_JF.shape[1]), activated_JF.dtype)
            product = self._scratch.get("expert_product", (num_rows, out.shape[1]), out.dtype)
            x[: end - begin].copy_(activated_JF[begin:end])
            x[end - begin :].zero_()
            self.linear(x, weight, out=product)
            scaled = self._scratch.get("expert_scaled", (end - begin, out.shape[1]), torch.float32)
            scaled.copy_(product[: end - begin]).mul_(scores[pairs][:, None])
            sums.index_add_(0, pairs // routes.experts_TA.shape[1], scaled)
        out.copy_(sums)

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        torch.div(x_RV, cap, out=out)
        out.tanh_().mul_(cap)

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        torch.index_select(x_TD, 0, rows_R, out=out)

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        assert isinstance(weight, LinearWeight)
        if weight.weight.dtype == torch.float32:
            self.linear(x_RD, weight, out=out)
            return
        narrow = self._scratch.like("logits", out, weight.weight.dtype)
        self.linear(x_RD, weight, out=narrow)
        out.copy_(narrow)

    def copy_blocks(self, copies_C2: Tensor, *, out: Tensor) -> None:
        self.swap_blocks(out, copies_C2, out=out)

    def swap_blocks(self, blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
        if not len(copies_C2):
            return
        copies = copies_C2.tolist()
        sources = [blocks[:, :, source] for source, _ in copies]
        # One pass in one call: a gather and a scatter take twice as long, and a call for each block, beside a thread
        # that holds the GIL, six times as long. One thread: every block would be a parallel loop of its own, which on
        # a busy machine waits for its lost core (64 blocks: 5 ms, but up to 1 s with two threads).
        with _one_thread():
            torch._foreach_copy_([out[:, :, target] for _, target in copies], sources)

    def _rotate(self, x: Tensor, rope: tuple[Tensor, Tensor], out: Tensor) -> None:
        """Rotate halves by separate products and sums: a fused multiply-add may round differently in vector tails."""
        cos, sin = rope
        first, second = x.chunk(2, dim=-1)
        out_first, out_second = out.chunk(2, dim=-1)
        product = self._scratch.like("rope_product", first, x.dtype)
        torch.mul(second, sin, out=product)
        torch.mul(first, cos, out=out_first)
        out_first.sub_(product)
        torch.mul(first, sin, out=product)
        torch.mul(second, cos, out=out_second)
        out_second.add_(product)


def _of_experts(routes: Routes, experts: ExpertWeights) -> Iterator[tuple[Weight, int, int, Tensor]]:
    """Yield the matrix of each expert that has pairs, the first and the end of its pairs, and these, by expert."""
    starts: list[int] = routes.starts_E1.tolist()
    for weight, (begin, end) in zip(experts.matrices, pairwise(starts), strict=True):
        if begin < end:
            yield weight, begin, end, routes.pairs_J[begin:end]


def _gate(activation: Callable[..., Tensor], gate_up_TX: Tensor, out: Tensor) -> None:
    """Compute out = activation(first half) · second half, slab by slab."""
    width = out.shape[1]
    slab = max(1, _GRAIN_ELEMENTS // width)
    for first in range(0, len(out), slab):
        rows = slice(first, first + slab)
        activation(gate_up_TX[rows, :width], out=out[rows])
    out.mul_(gate_up_TX[:, width:])


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
