"""`TritonOps` for steps of few rows, where launches cost more than arithmetic: 6 kernels per layer instead of 9.

A product takes in the norm before it, and the residual sum or the activation behind it. The model's code knows nothing
of that: an operation that may become part of another is put off until it is known what comes next, or what it would
have written is needed.

What has been put off is known by its tensors: what reads its result or overwrites its input is given the same objects.
So a norm in place is computed at once, because that of some columns is read as a part of all. Nothing but the
activation may read gate and up, and nothing but the logits the rows that are gathered for them.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from app.kernels.ops import LinearWeight, PagedBatch, Weight
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.layers import matvec
from app.kernels.triton.layers.gate import Activation
from app.kernels.triton.triton_ops import Products, TritonOps, plain


class _Norm(NamedTuple):
    """out = rms_norm(x), put off."""

    x_TD: Tensor
    weight_D: Tensor
    eps: float
    out: Tensor


class _Product(NamedTuple):
    """out = x · weightᵀ, put off; `norm` is what x still has to go through."""

    x_TX: Tensor
    weight: LinearWeight
    out: Tensor
    norm: _Norm | None


class _Gathered(NamedTuple):
    """out = x, put off."""

    x_TD: Tensor
    out: Tensor


class FusingOps(TritonOps):
    """Fuses what can be fused in steps in which each row is a sequence of its own, up to `max_rows` of them."""

    def __init__(self, products: Products, attention: PagedAttention, max_rows: int) -> None:
        super().__init__(products, attention)
        self._max_rows = max_rows
        self._is_decode = self._fuses = False
        self._norm: _Norm | None = None
        self._product: _Product | None = None
        self._gathered: _Gathered | None = None

    def begin_step(self, batch: PagedBatch) -> None:
        super().begin_step(batch)
        self._is_decode = batch.work is None
        self._fuses = self._is_decode and batch.num_tokens <= self._max_rows
        self._norm = self._product = self._gathered = None

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        if self._fuses and out is not x_TD:
            self._catch_up(x_TD, writes=(out,))
            self._compute_norm()
            self._norm = _Norm(x_TD, weight_D, eps, out)
        else:
            self._catch_up(x_TD, writes=(out,))
            super().rms_norm(x_TD, weight_D, eps, out=out)

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        product, norm = self._product, self._norm
        is_free = x_TD is out and (norm is None or norm.out is out)
        if weight_D is not None and product is not None and product.out is x_TD and product.norm is None and is_free:
            self._product = None
            matvec.linear_add(product.x_TX, product.weight.weight, product.weight.bias, residual_TD=residual_TD)
            self._norm = _Norm(residual_TD, weight_D, eps, out)
        else:
            self._catch_up(x_TD, residual_TD, writes=(residual_TD, out))
            super().add_rms_norm(x_TD, residual_TD, weight_D, eps, out=out)

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        if not self._fuses or not matvec.serves(len(x_TX), x_TX.dtype):
            self._catch_up(x_TX, writes=(out,))
            super().linear(x_TX, weight, out=out)
            return
        norm = self._norm
        if norm is not None and (norm.out is not x_TX or norm.x_TD is out):
            norm = None
        self._catch_up(*(() if norm else (x_TX,)), writes=(out,))
        self._product = _Product(x_TX, plain(weight), out, norm)

    def _gate_mul(self, gate_up_TX: Tensor, activation: Activation, out: Tensor) -> None:
        product = self._product
        norm = product.norm if product is not None and product.out is gate_up_TX else None
        if product is not None and norm is not None and norm.x_TD is not out and product.weight.bias is None:
            self._product = None
            self._catch_up(writes=(out,))  # also where the norm would have written
            matvec.norm_gate_up(norm.x_TD, norm.weight_D, norm.eps, product.weight.weight, activation, out=out)
        else:
            self._catch_up(gate_up_TX, writes=(out,))
            super()._gate_mul(gate_up_TX, activation, out)

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
        self._catch_up(qkv_TX)
        super().qk_norm_rope_kv_write(
            qkv_TX, norm_weight, eps, rope_PH, k_cache_BKGH, v_cache_BKGH, query_scale_P, out=out
        )

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        """Gather rows; put off in a decode step, where all rows in their order are what the logits can read."""
        if self._is_decode:
            self._catch_up()
            self._gathered = _Gathered(x_TD, out)
        else:
            self._catch_up(x_TD)
            super().gather_rows(x_TD, rows_R, out=out)

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            assert gathered.out is x_RD, "in a decode step nothing but the logits reads the rows that were gathered"
            x_RD = gathered.x_TD
        norm = self._norm
        if self._fuses and matvec.serves(len(x_RD), x_RD.dtype) and norm is not None and norm.out is x_RD:
            self._catch_up()
            matvec.norm_linear(norm.x_TD, norm.weight_D, norm.eps, plain(weight).weight, None, out=out)
        else:
            self._catch_up(x_RD)
            super().logits(x_RD, weight, out=out)

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        self._catch_up(x_RV, writes=(out,))
        super().softcap(x_RV, cap, out=out)

    def _catch_up(self, *reads: Tensor, writes: tuple[Tensor, ...] = ()) -> None:
        """Compute the product that was put off, and the norm before its result is read, or its input overwritten."""
        product, self._product = self._product, None
        if product is not None:
            weight, bias, before = product.weight.weight, product.weight.bias, product.norm
            if before is None:
                matvec.linear(product.x_TX, weight, bias, out=product.out)
            else:
                matvec.norm_linear(before.x_TD, before.weight_D, before.eps, weight, bias, out=product.out)
        norm = self._norm
        if norm is None:
            return
        is_overwritten, is_changed = (any(each is tensor for each in writes) for tensor in (norm.out, norm.x_TD))
        if any(read is norm.out for read in reads) or (is_changed and not is_overwritten):
            self._compute_norm()
        elif is_overwritten:
            self._norm = None

    def _compute_norm(self) -> None:
        """Compute the norm if one was put off."""
        norm, self._norm = self._norm, None
        if norm is not None:
            super().rms_norm(norm.x_TD, norm.weight_D, norm.eps, out=norm.out)
