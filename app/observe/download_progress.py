"""The progress of a download in one line: bytes, rate, time left."""

from __future__ import annotations

from collections import deque

from app.observe.console import Console
from app.runtime.clock import Clock, monotonic

INTERVAL_S = 0.1  # chunks arrive far more often than a line needs to change
WINDOW_S = 10.0  # the rate is that of the last ten seconds
_UNITS = ("kB", "MB", "GB", "TB")


class DownloadProgress:
    """Shows how much of `total` bytes is there; bytes that were there before do not count for the rate. One thread."""

    def __init__(self, console: Console, what: str, total: int, *, clock: Clock = monotonic) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()  # (time, bytes) of the window

    def show(self, done: int) -> None:
        """Show that `done` bytes are there."""
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < INTERVAL_S and done < self._total:
            return
        if self._seen and done < self._seen[-1][1]:  # the server sends a file from its beginning again
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        self._console.show_status(f"{self._what}: {progress_text(done, self._total, self._rate())}")

    def end(self) -> None:
        """Remove the line."""
        self._console.clear_status()

    def _rate(self) -> float:
        (first_time, first), (last_time, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_time - first_time) if last_time > first_time else 0.0


def progress_text(done: int, total: int, rate: float) -> str:
    """Return `1.2 GB of 4.9 GB (24%), 45 MB/s, 1:22 left`; without a rate only the first part."""
    text = f"{size_text(done)} of {size_text(total)} ({done * 100 // max(total, 1)}%)"
    if rate <= 0:
        return text
    return f"{text}, {size_text(int(rate))}/s, {_duration(int((total - done) / rate))} left"


def size_text(num_bytes: int) -> str:
    """Return a size in decimal units, as the hub and networks count: `93 MB`, `4.9 GB`."""
    value, units = num_bytes / 1000, list(_UNITS)
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
