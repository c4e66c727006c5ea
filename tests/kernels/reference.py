"""Plain torch version of every op: the specification, and the oracle of the kernel tests.

Written to be read: float32 inside, one token row at a time where that is clearer, no care for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec, RouterScores
from app.kernels.ops import ExpertWeights, LinearWeight, PagedBatch, Routes, Weight


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

    def route(
        self, x_TD: Tensor, router_ED: Tensor, correction_E: Tensor | None, experts: ExpertSpec, *, out: Routes
    ) -> None:
        """One row at a time; of equal scores the lowest number is the first."""
        of_experts: list[list[int]] = [[] for _ in range(experts.count)]
        for row in range(self.batch.num_tokens):
            products = router_ED @ x_TD[row].float()
            out.shared_T[row] = products[-1].sigmoid() if experts.has_shared_gate else 1.0
            scores, chosen = _choose(products[: experts.count], correction_E, experts)
            out.experts_TA[row] = torch.tensor(chosen)
            out.scores_TA[row] = scores
            for place, expert in enumerate(chosen):
                of_experts[expert].append(row * experts.per_token + place)
        pairs = [pair for own in of_experts for pair in own]
        out.pairs_J[: len(pairs)] = torch.tensor(pairs)
        out.starts_E1[0] = 0
        out.starts_E1[1:] = torch.tensor([len(own) for own in of_experts]).cumsum(0)

    def expert_gate_up(self, x_TD: Tensor, routes: Routes, experts: ExpertWeights, *, out: Tensor) -> None:
        for expert, weight in enumerate(experts.matrices):
            assert isinstance(weight, LinearWeight)
            for index in range(int(routes.starts_E1[expert]), int(routes.starts_E1[expert + 1])):
                row = int(routes.pairs_J[index]) // routes.experts_TA.shape[1]
                gate_up = (weight.weight.float() @ x_TD[row].float()).to(x_TD.dtype)
                self.silu_mul(gate_up[None], out=out[index : index + 1])

    def expert_down(
        self, activated_JF: Tensor, routes: Routes, experts: ExpertWeights, shared_TD: Tensor | None, *, out: Tensor
    ) -> None:
        sums = torch.zeros(out.shape)
        if shared_TD is not None:
            sums += routes.shared_T[: len(out), None] * shared_TD.float()
        for expert, weight in enumerate(experts.matrices):
            assert isinstance(weight, LinearWeight)
            for index in range(int(routes.starts_E1[expert]), int(routes.starts_E1[expert + 1])):
                row, place = divmod(int(routes.pairs_J[index]), routes.experts_TA.shape[1])
                sums[row] += routes.scores_TA[row, place] * (weight.weight.float() @ activated_JF[index].float())
        out.copy_(sums)

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


def _choose(products_E: Tensor, correction_E: Tensor | None, spec: ExpertSpec) -> tuple[Tensor, list[int]]:
    """Return the scores of a row's experts, and their numbers, ascending."""
    scores_E = products_E if spec.scores is RouterScores.CHOSEN_SOFTMAX else products_E.softmax(-1)
    if spec.scores is RouterScores.SIGMOID:
        scores_E = products_E.sigmoid()
    ranked = (scores_E if correction_E is None else scores_E + correction_E).tolist()
    size = spec.count // spec.groups
    groups = [range(first, first + size) for first in range(0, spec.count, size)]
    # sorted keeps the order of what is equal
    groups = sorted(groups, key=lambda group: -sum(sorted((ranked[each] for each in group), reverse=True)[:2]))
    allowed = sorted(expert for group in groups[: spec.groups_per_token] for expert in group)
    chosen = sorted(sorted(allowed, key=lambda expert: -ranked[expert])[: spec.per_token])
    scores = scores_E[chosen]
    if spec.scores is RouterScores.CHOSEN_SOFTMAX:
        scores = scores.softmax(-1)
    if spec.is_normalized:
        scores = scores / (scores.sum() + 1e-20)
    return scores * spec.scale, chosen
