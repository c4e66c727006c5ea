"""Rests, under the policy `fair`: the account that makes steps long sits some out, for as long as one of them took.

Beside another account's full batch a single answer would get its tokens at that batch's pace. So after a step with the
account that holds the most seats, the others take steps without that account until these have taken as long: each side
gets half of the time, and the short steps give many tokens. Where steps without the account are not much shorter,
because reading the weights is most of a step, a rest does not help and is not tried again for a while.

Rests are for decodes. Prompts have their share of every step (see `step_budget`), so no account rests where the others
have only prompts; and in the steps without the account the time of prompts is limited, so that these steps stay short.
"""

from __future__ import annotations

from app.engine.schedule.shares import SeatShares

# A step without the account must be at most this share of one with it.
MAX_SHARE = 1 / 3
# With prompts at most this share: predictions may be wrong by a third.
PROMPT_SHARE = 1 / 4
# Steps that an account sits out in a row at most.
MAX_RESTS = 32
# Steps in a row over MAX_SHARE after which rests are given up: a few may only have waited for a core or for the
# interpreter lock, which the loop needs for the tokens of a long step.
MAX_LONG = 8
# Steps until a rest is tried again after rests did not help.
PATIENCE = 512


class Rests:
    """Says which account sits the next step out. Engine thread only; pure."""

    def __init__(self, shares: SeatShares) -> None:
        self._shares = shares
        self._account: str | None = None  # part of the last long step, with the most seats then
        self._step_s = 0.0
        self._left_s = 0.0  # of its rest
        self._num_long = 0  # steps in a row without the account that were hardly shorter
        self._num_quiet = 0  # steps until a rest is tried

    @property
    def limit_s(self) -> float:
        """The seconds that a step with prompts may take while an account rests."""
        return PROMPT_SHARE * self._step_s

    def choose(self) -> str | None:
        """Return the account that rests, or None."""
        return self._account if self._left_s > 0.0 and self._account == self._shares.heaviest else None

    def observe(self, seconds: float, resting: str | None) -> None:
        """Learn how long a step took, and which account rested."""
        if resting is None:
            self._num_quiet = max(0, self._num_quiet - 1)
            self._account = self._shares.heaviest
            self._step_s = self._left_s = 0.0 if self._num_quiet or self._account is None else seconds
            return
        self._left_s -= max(seconds, self._step_s / MAX_RESTS)
        self._num_long = self._num_long + 1 if seconds > MAX_SHARE * self._step_s else 0
        if self._num_long == MAX_LONG:
            self._left_s, self._num_quiet, self._num_long = 0.0, PATIENCE, 0
