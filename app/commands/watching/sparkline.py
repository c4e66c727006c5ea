"""A row of small bars: how a number was lately."""

from __future__ import annotations

from collections import deque

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"


class Sparkline:
    """The last values of a number that is not negative, the newest on the right."""

    def __init__(self, width: int, *, is_unicode: bool) -> None:
        self._values: deque[float] = deque(maxlen=width)
        self._bars = _BARS if is_unicode else _ASCII_BARS

    def add(self, value: float) -> None:
        """Add a value; the oldest one goes when there is no room."""
        self._values.append(value)

    def __str__(self) -> str:
        """Return the bars; the highest one is the largest value, and 0 the lowest."""
        highest = max(self._values, default=0.0)
        last = len(self._bars) - 1
        return "".join(self._bars[round(value / highest * last) if highest else 0] for value in self._values)
