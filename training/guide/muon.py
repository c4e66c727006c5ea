"""Muon (Jordan et al., 2024) in float32: momentum whose matrix is made orthogonal before it is added.

It learns the answers in about two thirds of AdamW's steps. `torch.optim.Muon` computes in bfloat16, which most CPUs
only emulate: a step took four times as long.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

MOMENTUM = 0.95
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)  # of the published Newton-Schulz iteration
_ITERATIONS = 5


class Muon(Optimizer):
    """For matrices between hidden states; embeddings and vectors need another optimizer."""

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every matrix; an update has the size that AdamW's would have."""
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.mul_(MOMENTUM).add_(weight.grad)
                update = orthogonal(weight.grad + MOMENTUM * momentum)
                weight.add_(update, alpha=-group["lr"] * 0.2 * max(weight.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return about the nearest matrix whose singular values are 1."""
    x = matrix / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    a, b, c = _POLYNOMIAL
    for _ in range(_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x
