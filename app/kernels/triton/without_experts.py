"""The operations of mixtures of experts, which GPUs do not have: such a model is refused before they are called."""

from __future__ import annotations

from torch import Tensor

from app.checkpoint.spec import ExpertSpec
from app.kernels.ops import ExpertWeights, Routes


class WithoutExperts:
    """Implements `Ops` for models without experts."""

    def route(
        self, x_TD: Tensor, router_ED: Tensor, correction_E: Tensor | None, experts: ExpertSpec, *, out: Routes
    ) -> None:
        raise NotImplementedError

    def expert_gate_up(self, x_TD: Tensor, routes: Routes, experts: ExpertWeights, *, out: Tensor) -> None:
        raise NotImplementedError

    def expert_down(
        self, activated_JF: Tensor, routes: Routes, experts: ExpertWeights, shared_TD: Tensor | None, *, out: Tensor
    ) -> None:
        raise NotImplementedError
