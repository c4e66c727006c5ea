"""How much of one stream its reader has not taken yet, and whether that is too much."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from app.contract.events import TokenDelta
from app.streaming.flow.delta_buffer import delta_bytes
from app.streaming.flow.pending_bytes import AccountBytes


class Lag(IntEnum):
    """How far the reader of a stream is behind."""

    NONE = 0
    SLOW = 1  # too much is undelivered: what is done about it, its policy says
    FULL = 2  # no more may wait, whatever its policy says


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How much may be undelivered: from a high mark on it is too much, until both low ones are reached.

    From `full_bytes` on no more may wait, until it is half of that. With what comes until generation has stopped, the
    gaps of an allocator that many such streams share, the connection and its tasks, that is a stream of 256 KiB.
    """

    high_tokens: int = 192
    low_tokens: int = 64
    high_bytes: int = 48 * 1024
    low_bytes: int = 16 * 1024
    full_bytes: int = 96 * 1024


class FlowWindow:
    """Counts tokens and bytes on their way: those that wait, and those handed to a reader who has not come back.

    Attributes:
        waiting_tokens, waiting_bytes: of what waits; the bytes are counted in `pending`, too.
        handed_bytes: of what was handed over.
        lag: what was found last, at one of the marks.
    """

    __slots__ = ("_handed_tokens", "_marks", "_pending", "handed_bytes", "lag", "waiting_bytes", "waiting_tokens")

    def __init__(self, marks: Watermarks, pending: AccountBytes) -> None:
        self._marks = marks
        self._pending = pending
        self.waiting_tokens = self.waiting_bytes = 0
        self._handed_tokens = self.handed_bytes = 0
        self.lag = Lag.NONE

    @property
    def is_much_handed(self) -> bool:
        """Whether so much was handed over that it matters when the reader comes back."""
        return self._handed_tokens >= self._marks.low_tokens or self.handed_bytes >= self._marks.low_bytes

    def add(self, delta: TokenDelta) -> int:
        """A delta waits; return its size in bytes."""
        num_bytes = delta_bytes(delta)
        self.waiting_tokens += len(delta.token_ids)
        self.waiting_bytes += num_bytes
        self._pending.num_bytes += num_bytes
        return num_bytes

    def hand_over(self, delta: TokenDelta) -> None:
        """A delta that waited is handed over."""
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self.waiting_tokens -= num_tokens
        self.waiting_bytes -= num_bytes
        self._pending.num_bytes -= num_bytes
        self._handed_tokens += num_tokens
        self.handed_bytes += num_bytes

    def deliver(self) -> bool:
        """The reader has come back; say whether it has caught up with some of what was too much."""
        self._handed_tokens = self.handed_bytes = 0
        if not self.lag:
            return False
        before, marks = self.lag, self._marks
        if self.waiting_tokens <= marks.low_tokens and self.waiting_bytes <= marks.low_bytes:
            self.lag = Lag.NONE
        elif self.lag is Lag.FULL and self.waiting_bytes <= marks.full_bytes // 2:
            self.lag = Lag.SLOW
        return self.lag < before

    def drop(self) -> None:
        """Nothing waits any more: it will not be handed over."""
        self._pending.num_bytes -= self.waiting_bytes
        self.waiting_tokens = self.waiting_bytes = 0

    def check(self) -> bool:
        """Say whether it has become too much; ask when more comes, so that the reader has had the time between."""
        if self.lag:
            return self._judge_fullness()
        marks = self._marks
        if (
            self.waiting_tokens + self._handed_tokens >= marks.high_tokens
            or self.waiting_bytes + self.handed_bytes >= marks.high_bytes
        ):
            self.lag = Lag.SLOW
            return True
        return False

    def _judge_fullness(self) -> bool:
        if self.lag is Lag.FULL or self.waiting_bytes + self.handed_bytes < self._marks.full_bytes:
            return False
        self.lag = Lag.FULL
        return True
