"""Stop strings in a text that arrives in pieces.

The text is read character by character, whatever pieces it comes in: the stop string that ends first wins, and of
those that end together the longest. What is released is everything that can no longer be part of one: all but the
longest suffix that is the beginning of a stop string. The states are those of Aho and Corasick's automaton, one per
beginning of a stop string, so the work per character does not depend on how many stop strings there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=8)  # for the choices of a request: with 4,096 characters it takes 3 ms and a megabyte
def _automaton(stop_strings: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(stop_strings)


class StopAutomaton:
    """The beginnings of some stop strings; state 0 is the empty one. Immutable once made."""

    __slots__ = ("depths", "fallbacks", "match_lengths", "moves")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self.moves: list[dict[str, int]] = [{}]  # state -> character -> the state one character longer
        self.depths = [0]  # state -> length of the beginning it stands for
        self.match_lengths = [0]  # state -> length of the longest stop string that ends here, or 0
        for stop in stop_strings:
            self._add(stop)
        self.fallbacks = [0] * len(self.moves)  # state -> the longest other beginning it ends with
        self._link()

    def step(self, state: int, char: str) -> int:
        """Return the state for the longest beginning that the text ends with after `char`."""
        moves, fallbacks = self.moves, self.fallbacks
        while (longer := moves[state].get(char)) is None:
            if not state:
                return 0
            state = fallbacks[state]
        return longer

    def _add(self, stop: str) -> None:
        state = 0
        for depth, char in enumerate(stop, start=1):
            if char not in self.moves[state]:
                self.moves[state][char] = len(self.moves)
                self.moves.append({})
                self.depths.append(depth)
                self.match_lengths.append(0)
            state = self.moves[state][char]
        self.match_lengths[state] = len(stop)

    def _link(self) -> None:
        """Set the fallbacks, shorter beginnings first: each one needs those of its own beginnings."""
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, longer in self.moves[state].items():
                fallback = self.step(self.fallbacks[state], char) if state else 0
                self.fallbacks[longer] = fallback
                self.match_lengths[longer] = self.match_lengths[longer] or self.match_lengths[fallback]
                queue.append(longer)


class StopMatcher:
    """Looks for stop strings in one growing text. Not thread-safe: one owner."""

    __slots__ = ("_automaton", "_held", "_state", "is_matched")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self._automaton = _automaton(tuple(stop_strings))
        self._state = 0
        self._held = ""
        self.is_matched = False

    def append(self, text: str) -> str:
        """Read more text and return what is released; after a match nothing more is."""
        if self.is_matched:
            return ""
        automaton, state = self._automaton, self._state
        match_lengths, step = automaton.match_lengths, automaton.step
        whole = self._held + text
        for num_read, char in enumerate(text, start=len(self._held) + 1):
            state = step(state, char)
            if match_lengths[state]:
                self.is_matched = True
                self._held = ""
                return whole[: num_read - match_lengths[state]]
        self._state = state
        num_released = len(whole) - automaton.depths[state]
        self._held = whole[num_released:]
        return whole[:num_released]

    def flush(self) -> str:
        """Return what was held back: no more text comes, so it is no stop string."""
        text, self._held, self._state = self._held, "", 0
        return text
