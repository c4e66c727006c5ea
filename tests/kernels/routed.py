"""Inputs of the operations of experts: rows, routers and matrices of random numbers, and all operations in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec, RouterScores
from app.kernels.ops import ExpertWeights, LinearWeight, Ops, PagedBatch, Routes, pad_rows
from app.models.expert_rows import ExpertRows
from app.models.weights import Packer
from tests.kernels.batches import noise

HIDDEN = 40
PLAIN = ExpertSpec(count=5, per_token=2, width=24)
SPECS = {
    "softmax": PLAIN,
    "normalized": replace(PLAIN, is_normalized=True, scale=2.5),
    "chosen": replace(PLAIN, count=8, per_token=3, scores=RouterScores.CHOSEN_SOFTMAX),
    "shared": replace(PLAIN, count=7, per_token=4, shared_width=16),
    "gated": replace(PLAIN, count=60, per_token=4, shared_width=16, has_shared_gate=True),
    "groups": replace(
        PLAIN, count=12, per_token=3, scores=RouterScores.SIGMOID, is_normalized=True, scale=1.7, groups=4,
        groups_per_token=2,
    ),
    "one": replace(PLAIN, count=3, per_token=1),
    "all": replace(PLAIN, count=4, per_token=4),
}  # fmt: skip


@dataclass
class Mixture:
    """A mixture and its weights."""

    spec: ExpertSpec
    router_ED: Tensor
    correction_E: Tensor | None
    gate_up: ExpertWeights
    down: ExpertWeights

    def packed(self, packer: Packer) -> Mixture:
        """The same with matrices as a packer keeps them."""

        def packed(weights: ExpertWeights, *, is_gated: bool) -> ExpertWeights:
            return ExpertWeights(tuple(packer.linear(each, is_gated=is_gated) for each in weights.matrices))

        gate_up, down = packed(self.gate_up, is_gated=True), packed(self.down, is_gated=False)
        return replace(self, gate_up=gate_up, down=down)

    @classmethod
    def of(cls, spec: ExpertSpec, dtype: torch.dtype = torch.float32) -> Mixture:
        """Random weights; an odd spec also has a correction of its scores."""

        def matrices(rows: int, columns: int) -> ExpertWeights:
            weights = (noise(rows, columns, dtype=dtype, seed=seed) / columns**0.5 for seed in range(spec.count))
            return ExpertWeights(tuple(LinearWeight(weight) for weight in weights))

        router = noise(spec.count + spec.has_shared_gate, HIDDEN, seed=7) / HIDDEN**0.5
        correction = 0.3 * noise(spec.count, seed=8) if spec.scores is RouterScores.SIGMOID else None
        return cls(spec, router, correction, matrices(2 * spec.width, HIDDEN), matrices(HIDDEN, spec.width))


def batch_of(num_tokens: int) -> PagedBatch:
    """A step of so many tokens, of which only the number matters."""
    rows = torch.zeros(pad_rows(num_tokens), dtype=torch.int64)
    return PagedBatch(num_tokens, rows, rows, torch.zeros(1, 1, dtype=torch.int32), 16)


def padded(x_TD: Tensor) -> Tensor:
    """The rows, and garbage up to the padded number."""
    return torch.cat([x_TD, torch.full((pad_rows(len(x_TD)) - len(x_TD), x_TD.shape[1]), 3.0, dtype=x_TD.dtype)])


def route(ops: Ops, mixture: Mixture, x_TD: Tensor) -> Routes:
    """The routes of rows."""
    ops.begin_step(batch_of(len(x_TD)))
    rows = padded(x_TD)
    routes = ExpertRows.allocate(mixture.spec, len(rows), mixture.spec.width, rows).routes
    ops.route(rows, mixture.router_ED, mixture.correction_E, mixture.spec, out=routes)
    return routes


def compute(ops: Ops, mixture: Mixture, x_TD: Tensor) -> Tensor:
    """What the mixture makes of rows; half of a row stands for the result of a shared expert."""
    ops.begin_step(batch_of(len(x_TD)))
    rows = padded(x_TD)
    own = ExpertRows.allocate(mixture.spec, len(rows), mixture.spec.width, rows)
    ops.route(rows, mixture.router_ED, mixture.correction_E, mixture.spec, out=own.routes)
    ops.expert_gate_up(rows, own.routes, mixture.gate_up, out=own.activated_JF)
    out = rows / 2 if mixture.spec.shared_width else torch.full_like(rows, 7.0)
    ops.expert_down(own.activated_JF, own.routes, mixture.down, out if mixture.spec.shared_width else None, out=out)
    return out[: len(x_TD)].clone()
