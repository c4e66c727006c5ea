"""Repetition: whether an answer has become one passage again and again, as those of small models do when they loop.

The rule holds when the last 256 tokens or more are one period of at most 64 tokens, at least eight times.

A period of p tokens has a run of r tokens, if each of the last r tokens equals the one p places before it. The rule
holds for it from r = max(256, 8p) - p on, since the p tokens before the run are the first period. A token adds at most
one to a run. So after a look at all periods none is needed until as many tokens have come as the nearest one lacks, and
that look is at exactly the token at which the rule holds first, if it holds there at all. Two periods whose runs are
longer than both together break at the same token, which is why a hundred tokens have two looks at most.
"""

from __future__ import annotations

from array import array

MIN_TOKENS = 256
MAX_PERIOD = 64
MIN_TIMES = 8
_MAX_TOKENS = MIN_TIMES * MAX_PERIOD  # that the rule depends on
_BITS = 32  # of a token id


class Repetition:
    """The tokens of one answer, and whether it repeats itself; before `min_tokens` that is not told. One owner."""

    __slots__ = ("_num_lacking", "_token_ids")

    def __init__(self, min_tokens: int = 0) -> None:
        self._token_ids = array("I")
        self._num_lacking = max(MIN_TOKENS, min_tokens)

    def append(self, token_id: int) -> bool:
        """Take the next token, and return whether the rule holds after it. O(1), amortized."""
        self._token_ids.append(token_id)
        self._num_lacking -= 1
        if self._num_lacking > 0:
            return False
        del self._token_ids[:-_MAX_TOKENS]
        self._num_lacking = _num_lacking(self._token_ids)
        return self._num_lacking <= 0


def _num_lacking(token_ids: array[int]) -> int:
    """Return how many more tokens the rule needs at least, if they are what the nearest period demands."""
    # The tokens are the digits of one number, the last one the highest: the run of a period ends at the highest digit
    # that differs between the number and itself shifted, and that is found without a loop over tokens.
    digits, num_tokens, last = int.from_bytes(token_ids.tobytes(), "little"), len(token_ids), token_ids[-1]
    lacking = MIN_TOKENS - MIN_TOKENS // MIN_TIMES  # of the period that needs the shortest run, without one
    for period in range(1, MAX_PERIOD + 1):
        if token_ids[-1 - period] != last:
            continue
        num_pairs = num_tokens - period
        differing = (digits >> _BITS * period) ^ (digits & ((1 << _BITS * num_pairs) - 1))
        run = num_pairs - -(-differing.bit_length() // _BITS)
        lacking = min(lacking, max(MIN_TOKENS, MIN_TIMES * period) - period - run)
    return lacking
