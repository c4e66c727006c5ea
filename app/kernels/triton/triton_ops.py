"""The GPU implementation of `Ops`: Triton kernels, and cuBLAS for the dense products.

Every operation may be captured in a CUDA graph: grids follow from shapes, scratch is allocated once, and no value on
the device is read. In deterministic mode a row's bits depend on the row alone, as on a CPU: sums are cut at fixed
places, and one kind of product serves every number of rows.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from app.kernels.ops import LinearWeight, PagedBatch, Weight
from app.kernels.triton import blocks as block_copies
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.attention.work import MixedWork
from app.kernels.triton.layers import gate, norm, rotate, softcap
from app.kernels.triton.layers.matmul import make_workspace, matmul
from app.kernels.triton.without_experts import WithoutExperts


class Products(Protocol):
    """Dense products of rows with a weight; `num_bytes` of scratch."""

    num_bytes: int

    def linear(self, x_TX: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """Compute out = x · weightᵀ + bias."""

    def logits(self, x_RD: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """Compute out = x · weightᵀ, in float32 whatever x is."""


class CublasProducts:
    """Implements `Products` by the fastest there are; which kernels cuBLAS takes depends on the number of rows."""

    num_bytes = 0

    def linear(self, x_TX: Tensor, weight: LinearWeight, out: Tensor) -> None:
        if weight.bias is None:
            torch.mm(x_TX, weight.weight.t(), out=out)
        else:
            torch.addmm(weight.bias, x_TX, weight.weight.t(), out=out)

    def logits(self, x_RD: Tensor, weight: LinearWeight, out: Tensor) -> None:
        if x_RD.dtype == torch.float32:
            torch.mm(x_RD, weight.weight.t(), out=out)
        else:
            torch.mm(x_RD, weight.weight.t(), out_dtype=torch.float32, out=out)


class InvariantProducts:
    """Implements `Products` such that a row's bits depend on that row alone."""

    def __init__(self, place: torch.device) -> None:
        self._workspace = make_workspace(place)
        self.num_bytes = sum(int(part.nbytes) for part in self._workspace)

    def linear(self, x_TX: Tensor, weight: LinearWeight, out: Tensor) -> None:
        matmul(x_TX, weight.weight, weight.bias, out=out, workspace=self._workspace)

    def logits(self, x_RD: Tensor, weight: LinearWeight, out: Tensor) -> None:
        matmul(x_RD, weight.weight, None, out=out, workspace=self._workspace)


class TritonOps(WithoutExperts):
    """Implements `Ops` (see there for shapes). Engine thread only; its calls go to the current stream."""

    def __init__(self, products: Products, attention: PagedAttention) -> None:
        self._products, self._attention = products, attention
        self._batch: PagedBatch | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that the scratch of the kernels takes."""
        return self._products.num_bytes + self._attention.num_bytes

    @property
    def mixed_work(self) -> MixedWork:
        """Makes the lists of attention's work in mixed steps."""
        return self._attention.mixed_work

    def begin_step(self, batch: PagedBatch) -> None:
        self._batch = batch

    @property
    def batch(self) -> PagedBatch:
        """The current step's batch."""
        assert self._batch is not None, "begin_step comes first"
        return self._batch

    def embed(self, ids_T: Tensor, table: Weight, scale: float, *, out: Tensor) -> None:
        torch.index_select(plain(table).weight, 0, ids_T, out=out)
        if scale != 1:
            out.mul_(scale)

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        norm.rms_norm(x_TD, weight_D, eps, out=out)

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        if weight_D is None:
            norm.add(x_TD, residual_TD, out=out)
        else:
            norm.add_rms_norm(x_TD, residual_TD, weight_D, eps, out=out)

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        self._products.linear(x_TX, plain(weight), out)

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
        batch = self.batch
        rotate.qk_norm_rope_kv_write(
            qkv_TX,
            norm_weight,
            eps,
            rope_PH,
            k_cache_BKGH,
            v_cache_BKGH,
            batch.block_tables_SB,
            batch.positions_T,
            batch.state_rows_T,
            batch.block_size,
            query_scale_P,
            out=out,
        )

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
        self._attention.attend(q_TNH, k_cache_BKGH, v_cache_BKGH, self.batch, scale, window, softcap, out=out)

    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        self._gate_mul(gate_up_TX, "silu", out)

    def gelu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        self._gate_mul(gate_up_TX, "gelu", out)

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        softcap.softcap(x_RV, cap, out=out)

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        torch.index_select(x_TD, 0, rows_R, out=out)

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        self._products.logits(x_RD, plain(weight), out)

    def copy_blocks(self, copies_C2: Tensor, *, out: Tensor) -> None:
        """Copy blocks; not for capture."""
        if len(copies_C2):
            block_copies.copy_blocks(copies_C2.to(out.device, non_blocking=True), out=out)

    def swap_blocks(self, blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
        """Copy blocks between two caches; not for capture. Caches in host memory must be pinned."""
        if len(copies_C2):
            place = out.device if out.is_cuda else blocks.device
            block_copies.swap_blocks(blocks, copies_C2.to(place, non_blocking=True), out=out)

    def _gate_mul(self, gate_up_TX: Tensor, activation: gate.Activation, out: Tensor) -> None:
        """Compute out[T, F] = activation(gate) · up."""
        gate.gate_mul(gate_up_TX, activation, out=out)


def plain(weight: Weight) -> LinearWeight:
    """Return a weight as the matrix that it is on a GPU."""
    assert isinstance(weight, LinearWeight)
    return weight
