"""Predicts the seconds of a step: a * new tokens + b * attended tokens + c * read, learned from the steps themselves.

`read` is the share of the weights that the step reads: 1, but of a mixture of experts only those that compute one of
its tokens. Tokens are taken to choose their experts alike and independently; what they choose in truth moves a and c.

Least squares over the last few dozen steps (older ones fade exponentially), each weighted by 1 / its predicted time,
so that a long step does not outweigh the short ones. A run of equal steps, such as plain decoding, leaves many
solutions of the fit, and the one nearest to the last fit is taken. "Near" is relative: the coefficient that explains
most of the time takes most of a change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

# A step's weight is multiplied by this with each later step: after 50 steps 8 % is left.
_MEMORY = 0.95
# Predictions are used after this many steps.
_MIN_STEPS = 8
# A step's time counts as at most this many times its prediction: on a shared machine other processes delay single
# steps. There is no lower limit, since nothing makes a step too short.
_CLIP = 3.0
# How much the last fit counts against the data of all remembered steps together.
_INERTIA = 0.01
# A coefficient that explains nothing can still move as if it explained this share of the time.
_MIN_SHARE = 0.05
# Seconds per token below which a coefficient counts as 0.
_NOTHING = 1e-15


class _Fit(NamedTuple):
    per_token: float
    per_attended: float
    all_weights: float


class StepCost:
    """The online cost model of one device. Engine thread only; pure.

    Experts have the share `experts` of the bytes that a step over many tokens reads; a token is computed by the share
    `per_token` of them, and so does not read the others.
    """

    __slots__ = ("_fit", "_is_stale", "_moments", "_others", "experts", "num_steps")

    def __init__(self, experts: float = 0.0, per_token: float = 1.0) -> None:
        self.num_steps = 0
        self.experts = experts
        self._others = 1.0 - per_token
        self._fit = _Fit(0.0, 0.0, 0.0)
        self._is_stale = False
        self._moments = [0.0] * 9  # of (tokens, attended, read), weighted: tt ta tr aa ar rr, and the time: ty ay ry

    @property
    def is_known(self) -> bool:
        """Whether enough steps were seen to predict one."""
        return self.num_steps >= _MIN_STEPS

    def observe(self, num_tokens: int, num_attended: int, seconds: float) -> None:
        """Learn from a step: its new tokens (at least 1), the tokens that these attended to in total, and its time.

        A time of 0 was not measured, and the step is ignored.
        """
        if seconds <= 0.0:
            return
        a, b, c = self._fit
        read = self._read(num_tokens)
        predicted = a * num_tokens + b * num_attended + c * read
        w = 1.0 / (predicted or seconds)  # no fit yet
        t, k, r, y = num_tokens * w, num_attended * w, read * w, min(seconds * w, _CLIP)
        tt, tk, tr, kk, kr, rr, ty, ky, ry = self._moments
        self._moments = [
            tt * _MEMORY + t * t, tk * _MEMORY + t * k, tr * _MEMORY + t * r,
            kk * _MEMORY + k * k, kr * _MEMORY + k * r, rr * _MEMORY + r * r,
            ty * _MEMORY + t * y, ky * _MEMORY + k * y, ry * _MEMORY + r * y,
        ]  # fmt: skip
        self.num_steps += 1
        self._is_stale = True

    def predict(self, num_tokens: int, num_attended: int) -> float:
        """Return the predicted seconds of a step over so many tokens."""
        if self._is_stale:
            self._solve()
        per_token, per_attended, all_weights = self._fit
        return per_token * num_tokens + per_attended * num_attended + all_weights * self._read(num_tokens)

    def rates(self) -> tuple[float, float]:
        """Return the predicted seconds for a new token, and for each token that it attends to; 0 if unknown."""
        if self._is_stale:
            self._solve()
        return self._fit.per_token, self._fit.per_attended

    def most_tokens(self, budget_s: float, num_tokens: int, num_attended: int, start: int, limit: int) -> int:
        """Return the largest n, at most `limit`, such that a step with a chunk of n more tokens stays in budget.

        The step already has `num_tokens` that attend to `num_attended`; the chunk is of a sequence at position
        `start`, so its k-th token attends to start + k. 0 if the step is already over budget.
        """

        def takes(n: int) -> float:
            return self.predict(num_tokens + n, num_attended + n * start + n * (n + 1) // 2)

        if takes(limit) <= budget_s:  # as nearly always when a group starts
            return limit
        return max(0, bisect_right(range(limit), budget_s, key=takes) - 1)

    def _read(self, num_tokens: int) -> float:
        """Return the share of the weights that a step over so many tokens reads."""
        return 1.0 - self.experts * self._others**num_tokens

    def _solve(self) -> None:
        """Fit again: least squares, nothing negative, as near to the last fit as the data allow.

        The first fit starts from a rough assumption: all time is due to new tokens. Where the data do not decide, as
        with decodes alone, this errs towards small chunks.
        """
        tt, tk, tr, kk, kr, rr, ty, ky, ry = self._moments
        matrix, right = [[tt, tk, tr], [tk, kk, kr], [tr, kr, rr]], [ty, ky, ry]
        is_first = not any(self._fit)
        before = _Fit(ty / tt, 0.0, 0.0) if is_first else self._fit
        total = _dot(before, right)  # about the number of remembered steps
        share = 1.0 if is_first else _MIN_SHARE
        for i, last in enumerate(before):
            if matrix[i][i] > 0.0:
                reach = max(last, share * sqrt(total / matrix[i][i]))
                inertia = _INERTIA * total / reach**2
                matrix[i][i] += inertia
                right[i] += inertia * last
        self._fit = _Fit(*_solve_nonnegative(matrix, right))
        self._is_stale = False
        slower = _dot(self._fit, (tr, kr, rr)) / _dot(before, (tr, kr, rr))
        if slower > 1.0:  # the weights are of a faster machine, and would outweigh new steps
            self._moments = [moment / slower**2 for moment in self._moments]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _solve_nonnegative(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small symmetric system, leaving out unknowns (they become 0) while one of them comes out negative."""
    active = [i for i, row in enumerate(matrix) if row[i] > 0.0]
    solution = [0.0] * len(right)
    while active:
        values = _eliminate([[*(matrix[i][j] for j in active), right[i]] for i in active])
        worst = min(range(len(active)), key=values.__getitem__)
        if values[worst] >= 0.0:
            for i, value in zip(active, values, strict=True):
                solution[i] = value if value > _NOTHING else 0.0
            break
        del active[worst]
    return solution


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Eliminate (Gauss) in a symmetric positive definite system: no pivoting; each row ends with its right side."""
    n = len(rows)
    for i, row in enumerate(rows):
        for below in rows[i + 1 :]:
            factor = below[i] / row[i]
            for j in range(i, n + 1):
                below[j] -= factor * row[j]
    values = [0.0] * n
    for i in reversed(range(n)):
        known = sum(rows[i][j] * values[j] for j in range(i + 1, n))
        values[i] = (rows[i][n] - known) / rows[i][i]
    return values
