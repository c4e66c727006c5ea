"""Stop strings in a text that arrives in deltas.

The text is read character by character, independently of the deltas. The stop string that ends first matches; of those
that end at the same character, the longest. Text is released as soon as it cannot be part of a stop string: all but the
longest suffix that is a prefix of a stop string. The states are those of an Aho-Corasick automaton, one per prefix of a
stop string, so the work per character does not depend on the number of stop strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=8)  # shared by the choices of a request: 4,096 characters take 3 ms and a megabyte
def _automaton(stop_strings: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(stop_strings)


class StopAutomaton:
    """An Aho-Corasick automaton; each state is a prefix of a stop string, state 0 the empty one. Immutable."""

    __slots__ = ("depths", "fallbacks", "match_lengths", "moves")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self.moves: list[dict[str, int]] = [{}]  # state -> character -> the state that is one character longer
        self.depths = [0]  # state -> length of its prefix
        self.match_lengths = [0]  # state -> length of the longest stop string that ends here, or 0
        for stop in stop_strings:
            self._add(stop)
        self.fallbacks = [0] * len(self.moves)  # state -> the state of its longest proper suffix
        self._link()

    def step(self, state: int, char: str) -> int:
        """Return the state of the longest prefix at the end of the text after `char`."""
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
        """Set the fallbacks, shorter prefixes first: a state needs the fallbacks of its own prefixes."""
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, longer in self.moves[state].items():
                fallback = self.step(self.fallbacks[state], char) if state else 0
                self.fallbacks[longer] = fallback
                self.match_lengths[longer] = self.match_lengths[longer] or self.match_lengths[fallback]
                queue.append(longer)


class StopMatcher:
    """Searches for stop strings in one growing text. Not thread-safe: one owner."""

    __slots__ = ("_automaton", "_held", "_state", "is_matched")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self._automaton = _automaton(tuple(stop_strings))
        self._state = 0
        self._held = ""
        self.is_matched = False

    def append(self, text: str) -> str:
        """Add text, and return the released text; after a match nothing is released."""
        if self.is_matched:
            return ""
        automaton, state = self._automaton, self._state
        match_lengths, step = automaton.match_lengths, automaton.step
        pending = self._held + text
        for num_read, char in enumerate(text, start=len(self._held) + 1):
            state = step(state, char)
            if match_lengths[state]:
                self.is_matched = True
                self._held = ""
                return pending[: num_read - match_lengths[state]]
        self._state = state
        num_released = len(pending) - automaton.depths[state]
        self._held = pending[num_released:]
        return pending[:num_released]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text."""
        text, self._held, self._state = self._held, "", 0
        return text
