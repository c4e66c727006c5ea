"""Proposes draft tokens for one sequence, as many as are worth their cost.

The proposer estimates the chance that a draft token is accepted if those before it were. A draft ends where the chance
of the next token is not worth its cost, so drafts grow after accepted ones and shrink after rejected ones. When not
even one token is worth its cost, the sequence backs off for a while, twice as long each time no draft token was
accepted, and then starts again.

Draft tokens are those that followed the last few tokens where these occurred before in the text (prompt lookup). An
index maps runs of two lengths to the position after their last occurrence. If the text ends with a long run that has
occurred before, the tokens after that run are proposed, else those after a short run. Lengths in between found no more
in code, tables and prose. Adding a token and looking up a run take the same time in a text of any length.
"""

from __future__ import annotations

from collections.abc import Sequence

# The first estimate of a sequence, and after it backed off.
FIRST_CHANCE = 0.6
# Below this estimate a sequence backs off, however little a draft token costs.
MIN_CHANCE = 0.15
# The weight of the old estimate after one more token was accepted or rejected.
_MEMORY = 0.8
# Tokens of an answer without drafts, after a sequence backed off.
FIRST_BACK_OFF = 8
MAX_BACK_OFF = 256
# The lengths of indexed runs.
LONG, SHORT = 6, 2
# A long prompt is indexed over several calls: so many tokens take about 0.2 ms.
MAX_TOKENS_PER_CALL = 256
# At least the runs of the last so many tokens are indexed, at most those of twice as many; each takes about 300 bytes.
MAX_TOKENS = 8192


class NgramIndex:
    """Proposes the next tokens after a prompt and its answer. Engine thread only.

    `answer` is the live list: tokens that are appended to it are found in the next call.
    """

    __slots__ = ("_answer", "_first", "_long", "_next", "_num_prompt", "_short", "_tokens")

    def __init__(self, prompt: Sequence[int], answer: list[int]) -> None:
        self._answer = answer
        self._num_prompt = len(prompt)
        self._tokens = list(prompt)
        self._long: dict[tuple[int, ...], int] = {}
        self._short: dict[tuple[int, ...], int] = {}
        # [0, first) no longer indexed | [first, next) last tokens of indexed runs | the rest not indexed yet
        self._first = self._next = max(LONG - 1, len(prompt) - MAX_TOKENS)

    def propose(self, count: int) -> list[int]:
        """Return `count` tokens that may come next, [] if the text ends with no earlier run.

        A run that reaches the end of the text is repeated.
        """
        tokens = self._tokens
        tokens += self._answer[len(tokens) - self._num_prompt :]
        if self._next < len(tokens) - 1:
            self._index_runs()
        position = self._long.get(tuple(tokens[-LONG:])) or self._short.get(tuple(tokens[-SHORT:]))
        if position is None:
            return []
        found = tokens[position : position + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found

    def _index_runs(self) -> None:
        """Index the runs that end before the last token: after the last one nothing is known."""
        tokens, long, short = self._tokens, self._long, self._short
        if self._next - self._first >= 2 * MAX_TOKENS:
            long.clear()
            short.clear()
            self._first = self._next = len(tokens) - MAX_TOKENS
        end = min(len(tokens) - 1, self._next + MAX_TOKENS_PER_CALL)
        for position in range(self._next + 1, end + 1):
            long[tuple(tokens[position - LONG : position])] = position
            short[tuple(tokens[position - SHORT : position])] = position
        self._next = end


class Proposer:
    """Proposes the drafts of one sequence, which the tokens in `ends` would end. Engine thread only."""

    __slots__ = ("_back_off", "_ends", "_index", "_resume_at", "chance")

    def __init__(self, index: NgramIndex, ends: frozenset[int]) -> None:
        self.chance = FIRST_CHANCE
        self._index = index
        self._ends = ends
        self._back_off = FIRST_BACK_OFF
        self._resume_at = 0

    def length(self, cost: float, most: int, num_tokens: int) -> int:
        """Return how many draft tokens, at most `most`, are worth their cost for a sequence of `num_tokens`.

        `cost` is that of one draft token, as a multiple of the present cost of a gained token.
        """
        if num_tokens < self._resume_at:
            return 0
        length, chance = 0, self.chance
        while length < most and chance > cost:
            length += 1
            chance *= self.chance
        if most > 0 and not length and self.chance < FIRST_CHANCE:
            self.back_off(num_tokens)
        return length

    def propose(self, length: int) -> tuple[int, ...]:
        """Return at most `length` tokens that may come next, only those before one that would end the answer."""
        found = self._index.propose(length)
        if self._ends.isdisjoint(found):
            return tuple(found)
        return tuple(found[: next(index for index, token_id in enumerate(found) if token_id in self._ends)])

    def gain(self, length: int) -> float:
        """Return how many of `length` draft tokens are accepted on average."""
        if self.chance == 1.0:
            return float(length)
        return self.chance * (1.0 - self.chance**length) / (1.0 - self.chance)

    def learn(self, length: int, num_accepted: int, num_tokens: int) -> None:
        """Learn that `num_accepted` of `length` draft tokens were accepted; the sequence now has `num_tokens`."""
        num_tried = min(num_accepted + 1, length)
        memory = _MEMORY**num_tried
        self.chance = memory * self.chance + (1.0 - memory) * num_accepted / num_tried
        if num_accepted:
            self._back_off = FIRST_BACK_OFF
        elif self.chance < MIN_CHANCE:
            self.back_off(num_tokens)

    def back_off(self, num_tokens: int) -> None:
        """Propose nothing for a while."""
        self._resume_at = num_tokens + self._back_off
        self._back_off = min(2 * self._back_off, MAX_BACK_OFF)
        self.chance = FIRST_CHANCE
