"""Stop strings in a text that arrives in deltas.

The text is read character by character, independently of the deltas. The stop string that ends first matches; of those
that end at the same character, the longest. Text is released as soon as it cannot be part of a stop string: all but the
longest suffix that is a prefix of a stop string. The states of the search are these prefixes, as in the Aho-Corasick
algorithm, so the work per character does not depend on the number of stop strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=8)  # shared by the choices of a request: 4,096 characters take 1.3 ms and a megabyte
def _prefixes(stop_strings: tuple[str, ...]) -> dict[str, int]:
    """Return each prefix of a stop string, with the length of the longest stop string at its end, or 0."""
    prefixes = {stop[:length] for stop in stop_strings for length in range(len(stop) + 1)}
    return {
        prefix: max(len(stop) for stop in stop_strings if prefix.endswith(stop)) if prefix.endswith(stop_strings) else 0
        for prefix in prefixes
    }


class StopMatcher:
    """Searches for stop strings in one growing text. Not thread-safe: one owner."""

    __slots__ = ("_held", "_prefixes", "matched")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self._prefixes = _prefixes(tuple(stop_strings))
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def append(self, text: str) -> str:
        """Add text, and return the released text; after a match nothing is released."""
        if self.matched is not None:
            return ""
        prefixes, held = self._prefixes, self._held
        if not held and prefixes.keys().isdisjoint(text):  # most text has no first character of a stop string
            return text
        pending = held + text
        for num_read, char in enumerate(text, start=len(held) + 1):
            held += char
            while (num_matched := prefixes.get(held)) is None:
                held = held[1:]
            if num_matched:
                self.matched = held[-num_matched:]
                self._held = ""
                return pending[: num_read - num_matched]
        self._held = held
        return pending[: len(pending) - len(held)]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text
