"""Plain torch version of every op: the specification, and the oracle of the kernel tests.

Written to be read: float32 inside, one token row at a time where that is clearer, no care for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.kernels.ops import LinearWeight, PagedBatch, Weight


class ReferenceOps:
    """Implements `Ops` (see there for shapes) in the plainest way."""

    def __init__(self) -> None:
        self._batch: PagedBatch | None = None

    @property
    def batch(self) -> PagedBatch:
        """The current step's batch."""
        assert self._batch is not None, "begin_step comes first"
        return self._batch

    def begin_step(self, batch: PagedBatch) -> None:
        """Remember the batch."""
        self._batch = batch

    def embed(self, ids_T: Tensor, table: Weight, scale: float, *, out: Tensor) -> None:
        assert isinstance(table, LinearWeight)
        out.copy_(table.weight[ids_T].float() * scale)

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        """Normalize in float32, round, then scale (as Llama's reference does)."""
        x = x_TD.float()
        out.copy_((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(out.dtype) * weight_D)

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        residual_TD += x_TD
        if weight_D is None:
            out.copy_(residual_TD)
        else:
            self.rms_norm(residual_TD, weight_D, eps, out=out)

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        assert isinstance(weight, LinearWeight)
        product = x_TX.float() @ weight.weight.float().T
        out.copy_(product if weight.bias is None else product + weight.bias.float())

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
        num_heads, num_kv_heads, head_dim = out.shape[1], k_cache_BKGH.shape[2], out.shape[2]
        heads = qkv_TX.view(len(out), -1, head_dim)
        qk_THH, v_TGH = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        if norm_weight is not None:
            normed = torch.empty_like(qk_THH)
            self.rms_norm(qk_THH, norm_weight, eps, out=normed)
            qk_THH = normed
        cos, sin = rope_PH[self.batch.positions_T][:, None].chunk(2, dim=-1)
        first, second = qk_THH.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        out.copy_(rotated[:, :num_heads])
        if query_scale_P is not None:
            out *= query_scale_P[self.batch.positions_T][:, None, None].to(out.dtype)
        block_size = k_cache_BKGH.shape[1]
        for token in range(self.batch.num_tokens):
            position = int(self.batch.positions_T[token])
            block = self.batch.block_tables_SB[self.batch.state_rows_T[token], position // block_size]
            k_cache_BKGH[block, position % block_size] = rotated[token, num_heads:]
            v_cache_BKGH[block, position % block_size] = v_TGH[token]

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
        group = q_TNH.shape[1] // k_cache_BKGH.shape[2]
        block_size = k_cache_BKGH.shape[1]
        out[self.batch.num_tokens :] = 0
        for token in range(self.batch.num_tokens):
            position = int(self.batch.positions_T[token])
            first = 0 if window is None else max(0, position - window + 1)
            seen = torch.arange(first, position + 1)
            blocks = self.batch.block_tables_SB[self.batch.state_rows_T[token]].long()[seen // block_size]
            k_LNH = k_cache_BKGH[blocks, seen % block_size].float().repeat_interleave(group, dim=1)
            v_LNH = v_cache_BKGH[blocks, seen % block_size].float().repeat_interleave(group, dim=1)
            scores_NL = torch.einsum("nh,lnh->nl", q_TNH[token].float(), k_LNH) * scale
            if softcap is not None:
                self.softcap(scores_NL, softcap, out=scores_NL)
            out[token] = torch.einsum("nl,lnh->nh", scores_NL.softmax(-1), v_LNH).to(out.dtype)

    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        """Round silu to the storage type before the product."""
        gate, up = gate_up_TX.chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate.float()).to(out.dtype) * up)

    def gelu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        """Round gelu to the storage type before the product."""
        gate, up = gate_up_TX.chunk(2, dim=-1)
        out.copy_(torch.nn.functional.gelu(gate.float(), approximate="tanh").to(out.dtype) * up)

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        out.copy_(cap * torch.tanh(x_RV / cap))

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        out.copy_(x_TD[rows_R])

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        self.linear(x_RD, weight, out=out)

    def copy_blocks(self, copies_C2: Tensor, *, out: Tensor) -> None:
        for source, target in copies_C2.tolist():
            out[:, :, target] = out[:, :, source]

    def swap_blocks(self, blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
        for source, target in copies_C2.tolist():
            out[:, :, target] = blocks[:, :, source]
