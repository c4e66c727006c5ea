"""A guesser: what one sequence's next tokens may be, and how many of them are worth a try.

It keeps an estimate of the chance that a guessed token is right if those before it were. A guess is as long as its
last token's chance to be gained is worth what that token costs, so it grows after guesses that were right and shrinks
after wrong ones. When not even one token is worth it any more the sequence is quiet for a while, longer each time
nothing it guessed was right, and then starts anew.
"""

from __future__ import annotations

from app.engine.schedule.speculation.ngram import NgramIndex

# Of a sequence that has not guessed yet, or not for a while.
FIRST_CHANCE = 0.6
# Below this it is quiet, however little a guess costs.
MIN_CHANCE = 0.15
# What is left of the last estimate after one more token that was right or wrong.
_MEMORY = 0.8
# Tokens of an answer without a guess.
FIRST_QUIET = 8
MAX_QUIET = 256


class Proposer:
    """The guesses of one sequence; the tokens in `ends` would end it. Engine thread only."""

    __slots__ = ("_ends", "_index", "_quiet", "_quiet_until", "chance")

    def __init__(self, index: NgramIndex, ends: frozenset[int]) -> None:
        self.chance = FIRST_CHANCE
        self._index = index
        self._ends = ends
        self._quiet = FIRST_QUIET
        self._quiet_until = 0

    def length(self, price: float, most: int, num_tokens: int) -> int:
        """How many tokens, at most `most`, a sequence of `num_tokens` should guess.

        One more costs `price` times what it costs now to gain a token.
        """
        if num_tokens < self._quiet_until:
            return 0
        length, chance = 0, self.chance
        while length < most and chance > price:
            length += 1
            chance *= self.chance
        if most > 0 and not length and self.chance < FIRST_CHANCE:
            self.be_quiet(num_tokens)
        return length

    def guess(self, length: int) -> tuple[int, ...]:
        """Return at most `length` tokens that may come next: none that would end the answer, nor what follows it."""
        found = self._index.guess(length)
        if self._ends.isdisjoint(found):
            return tuple(found)
        return tuple(found[: next(place for place, token_id in enumerate(found) if token_id in self._ends)])

    def gain(self, length: int) -> float:
        """How many of `length` guessed tokens will be right on average."""
        if self.chance == 1.0:
            return float(length)
        return self.chance * (1.0 - self.chance**length) / (1.0 - self.chance)

    def learn(self, length: int, num_right: int, num_tokens: int) -> None:
        """The first `num_right` of `length` guessed tokens were right; the sequence now has `num_tokens`."""
        num_tried = min(num_right + 1, length)
        memory = _MEMORY**num_tried
        self.chance = memory * self.chance + (1.0 - memory) * num_right / num_tried
        if num_right:
            self._quiet = FIRST_QUIET
        elif self.chance < MIN_CHANCE:
            self.be_quiet(num_tokens)

    def be_quiet(self, num_tokens: int) -> None:
        """Guess nothing for a while."""
        self._quiet_until = num_tokens + self._quiet
        self._quiet = min(2 * self._quiet, MAX_QUIET)
        self.chance = FIRST_CHANCE
