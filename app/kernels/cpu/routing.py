"""Which experts compute which rows, in eager torch: a row's bits depend on the row alone."""

from __future__ import annotations

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec, RouterScores
from app.kernels.ops import Routes

# Softmax works row by row, and what is left of a row that fills no vector is computed as the rest. The sigmoid goes
# through all numbers at once: columns are padded to whole vectors, and calls are so small that no thread shares them.
_COLUMNS = 32
_GRAIN_ELEMENTS = 32768


def choose(products_TE: Tensor, correction_E: Tensor | None, spec: ExpertSpec, num_rows: int, out: Routes) -> None:
    """Fill `out` by the router's products (float32, padded rows); `num_rows` of the rows are real."""
    scores_TE = products_TE[:, : spec.count]
    if spec.scores is RouterScores.SOFTMAX:
        scores_TE = scores_TE.softmax(-1)
    elif spec.scores is RouterScores.SIGMOID:
        scores_TE = sigmoid(scores_TE)
    ranked_TE = scores_TE if correction_E is None else scores_TE + correction_E
    if spec.groups > 1:
        ranked_TE = _of_best_groups(ranked_TE, spec)
    chosen_TA = _highest(ranked_TE, spec.per_token).sort(-1).values
    scores_TA = scores_TE.gather(1, chosen_TA)
    if spec.scores is RouterScores.CHOSEN_SOFTMAX:
        scores_TA = scores_TA.softmax(-1)
    if spec.is_normalized:
        scores_TA = scores_TA / (_sum(scores_TA) + 1e-20)
    torch.mul(scores_TA, spec.scale, out=out.scores_TA)
    out.experts_TA.copy_(chosen_TA)
    pairs_J = chosen_TA[:num_rows].flatten()
    out.pairs_J[: len(pairs_J)].copy_(pairs_J.argsort(dim=0, stable=True))
    out.starts_E1[0] = 0
    out.starts_E1[1:].copy_(pairs_J.bincount(minlength=spec.count).cumsum(0))


def sigmoid(x_TE: Tensor) -> Tensor:
    """Return the sigmoid of each number."""
    width = -(-x_TE.shape[1] // _COLUMNS) * _COLUMNS
    padded = torch.zeros(len(x_TE), width)
    padded[:, : x_TE.shape[1]] = x_TE
    slab = max(1, _GRAIN_ELEMENTS // width)
    for first in range(0, len(padded), slab):
        padded[first : first + slab].sigmoid_()
    return padded[:, : x_TE.shape[1]]


def _of_best_groups(ranked_TE: Tensor, spec: ExpertSpec) -> Tensor:
    """Return the scores with -inf for experts outside of the groups whose two best have the highest sums."""
    size = spec.count // spec.groups
    grouped = ranked_TE.reshape(len(ranked_TE), spec.groups, size)
    best = _sum(grouped.flatten(0, 1).sort(-1, descending=True).values[:, :2]).view(len(ranked_TE), spec.groups)
    is_allowed = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _highest(best, spec.groups_per_token), True)
    return grouped.masked_fill(~is_allowed[:, :, None], float("-inf")).flatten(1)


def _highest(scores_TX: Tensor, count: int) -> Tensor:
    """Return the columns of the highest scores, the first of equal ones."""
    return scores_TX.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _sum(x_TX: Tensor) -> Tensor:
    """Return the sums of rows [T, 1], taken from the first column to the last."""
    total = x_TX[:, :1].clone()
    for column in range(1, x_TX.shape[1]):
        total += x_TX[:, column : column + 1]
    return total
