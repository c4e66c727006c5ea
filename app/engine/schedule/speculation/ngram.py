"""N-grams: what came after the last few tokens when they stood in a text before (prompt lookup).

The index maps runs of two lengths to the index after their last occurrence. If the text ends with a long run that has
occurred before, the tokens after that run are proposed, else those after a short run. Lengths in between found no more
in code, tables and prose. Adding a token and looking up a run take the same time in a text of any length.
"""

from __future__ import annotations

from collections.abc import Sequence

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
            self._take_in()
        place = self._long.get(tuple(tokens[-LONG:])) or self._short.get(tuple(tokens[-SHORT:]))
        if place is None:
            return []
        found = tokens[place : place + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found

    def _take_in(self) -> None:
        """Index the runs that end before the last token: after the last one nothing is known."""
        tokens, long, short = self._tokens, self._long, self._short
        if self._next - self._first >= 2 * MAX_TOKENS:
            long.clear()
            short.clear()
            self._first = self._next = len(tokens) - MAX_TOKENS
        end = min(len(tokens) - 1, self._next + MAX_TOKENS_PER_CALL)
        for place in range(self._next + 1, end + 1):
            long[tuple(tokens[place - LONG : place])] = place
            short[tuple(tokens[place - SHORT : place])] = place
        self._next = end
