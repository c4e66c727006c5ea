"""The policy for slow readers (`stream_options.slow_reader`): what happens to a stream while its reader lags.

How far a reader lags is measured by its mailbox (`flow_window.Lag`). With any policy, a reader that takes nothing for
the stall timeout is disconnected, by the transport that notices it.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from app.streaming.flow.flow_window import Lag


class SlowReader(StrEnum):
    """The policies."""

    PAUSE = "pause"  # generation pauses until the reader has caught up
    COALESCE = "coalesce"  # generation continues until 96 KiB are pending, merged
    DROP = "drop"  # the stream ends with an error


DISCONNECT = "cut"
"""The reader took nothing for the stall timeout and is disconnected, with any policy."""


class Change(Enum):
    """A change of a stream, made because its reader's lag has changed."""

    PAUSE = auto()
    RESUME = auto()
    DROP = auto()


class SlowReaderPolicy:
    """Says what a policy asks of one stream, and counts the lags. Loop only.

    Attributes:
        is_paused: whether generation is paused for the reader.
    """

    def __init__(self, policy: SlowReader, counts: dict[str, int]) -> None:
        self.is_paused = False
        self._policy = policy
        self._counts = counts
        self._was_slow = False

    def update(self, lag: Lag) -> Change | None:
        """Take the reader's new lag, and return what is to be done; at `Lag.FULL` generation always stops."""
        if lag and not self._was_slow:
            self._counts[self._policy] += 1
        self._was_slow = bool(lag)
        if self._policy is SlowReader.DROP:
            return Change.DROP if lag else None
        is_paused = lag >= (Lag.SLOW if self._policy is SlowReader.PAUSE else Lag.FULL)
        if is_paused == self.is_paused:
            return None
        self.is_paused = is_paused
        return Change.PAUSE if is_paused else Change.RESUME
