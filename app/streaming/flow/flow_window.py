"""Flow control of one stream: the credit of its client, and the watermarks of its undelivered data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from app.contract.events import TokenDelta
from app.streaming.flow.delta_buffer import delta_bytes


class Credit:
    """The number of the last token of each choice that a client of quire.v1 allows to be sent. Loop only.

    Numbers never fall, so grants may be lost, doubled or out of order. `first` is the number of a choice that no grant
    has raised.

    Attributes:
        num_raises: the number of grants that have raised a number.
    """

    __slots__ = ("_first", "_upto", "num_raises")

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._upto: dict[int, int] = {}
        self.num_raises = 0

    def upto(self, choice: int) -> int:
        """Return the number of the last token of `choice` that may be sent."""
        return self._upto.get(choice, self._first)

    def grant(self, upto: Sequence[int]) -> None:
        """Allow choice i to be sent up to its token `upto[i]`; choices beyond the list keep their numbers."""
        raised = {choice: number for choice, number in enumerate(upto) if number > self.upto(choice)}
        self._upto.update(raised)
        self.num_raises += bool(raised)


class Lag(IntEnum):
    """How far the reader of a stream is behind."""

    NONE = 0
    SLOW = 1  # too much is undelivered: the policy of the stream decides what follows
    FULL = 2  # nothing more may become pending, with any policy


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Limits of undelivered tokens and bytes: the lag begins at a high mark, and ends at both low ones.

    At `full_bytes` nothing more may become pending, until half of that is reached. Together with the tokens that come
    until generation has stopped, the fragmentation of the allocator, the connection and its tasks, a stream takes at
    most 256 KiB.
    """

    high_tokens: int = 192
    low_tokens: int = 64
    high_bytes: int = 48 * 1024
    low_bytes: int = 16 * 1024
    full_bytes: int = 96 * 1024


class AccountBytes:
    """The pending bytes of one account, counted by the streams and answers of the account. Loop only."""

    __slots__ = ("__weakref__", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def counted(self, num_bytes: int) -> Iterator[None]:
        """Count `num_bytes` within the block."""
        self.num_bytes += num_bytes
        try:
            yield
        finally:
            self.num_bytes -= num_bytes


class FlowWindow:
    """Counts the undelivered tokens and bytes: pending ones, and those handed over to a reader that has not come back.

    Attributes:
        pending_tokens, pending_bytes: the pending ones; the bytes are also counted in `account`.
        handed_bytes: the bytes that were handed over.
        held_bytes: the bytes of what a stream gets once, counted in `account` alone: generating less saves none of it.
        lag: the lag, as of the last mark that was reached.
    """

    __slots__ = (
        "_account",
        "_handed_tokens",
        "_marks",
        "handed_bytes",
        "held_bytes",
        "lag",
        "pending_bytes",
        "pending_tokens",
    )

    def __init__(self, marks: Watermarks, account: AccountBytes) -> None:
        self._marks = marks
        self._account = account
        self.pending_tokens = self.pending_bytes = 0
        self._handed_tokens = self.handed_bytes = self.held_bytes = 0
        self.lag = Lag.NONE

    @property
    def is_much_handed(self) -> bool:
        """Whether so much was handed over that its delivery may end a lag."""
        return self._handed_tokens >= self._marks.low_tokens or self.handed_bytes >= self._marks.low_bytes

    def add(self, delta: TokenDelta) -> int:
        """Count a new pending delta; return its size in bytes."""
        num_bytes = delta_bytes(delta)
        self.pending_tokens += len(delta.token_ids)
        self.pending_bytes += num_bytes
        self._account.num_bytes += num_bytes
        return num_bytes

    def hand_over(self, delta: TokenDelta) -> None:
        """Count a pending delta as handed over."""
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self.pending_tokens -= num_tokens
        self.pending_bytes -= num_bytes
        self._account.num_bytes -= num_bytes
        self._handed_tokens += num_tokens
        self.handed_bytes += num_bytes

    def hold(self, num_bytes: int) -> None:
        """Count what a stream gets once, until `release` or `drop`."""
        self.held_bytes += num_bytes
        self._account.num_bytes += num_bytes

    def release(self) -> None:
        """Count what was held as delivered."""
        self._account.num_bytes -= self.held_bytes
        self.held_bytes = 0

    def deliver(self) -> bool:
        """Count all that was handed over as delivered, since the reader has come back; return whether the lag fell."""
        self._handed_tokens = self.handed_bytes = 0
        if not self.lag:
            return False
        before, marks = self.lag, self._marks
        if self.pending_tokens <= marks.low_tokens and self.pending_bytes <= marks.low_bytes:
            self.lag = Lag.NONE
        elif self.lag is Lag.FULL and self.pending_bytes <= marks.full_bytes // 2:
            self.lag = Lag.SLOW
        return self.lag < before

    def drop(self) -> None:
        """Forget the pending data, which will not be handed over, and what is held."""
        self.release()
        self._account.num_bytes -= self.pending_bytes
        self.pending_tokens = self.pending_bytes = 0

    def check(self) -> bool:
        """Raise the lag if its next mark is reached, and return whether it was.

        Call it before new data is added: the reader has had time to take the older data.
        """
        marks = self._marks
        num_bytes = self.pending_bytes + self.handed_bytes
        if not self.lag:
            is_reached = self.pending_tokens + self._handed_tokens >= marks.high_tokens or num_bytes >= marks.high_bytes
        else:
            is_reached = self.lag is Lag.SLOW and num_bytes >= marks.full_bytes
        if is_reached:
            self.lag = Lag.FULL if self.lag else Lag.SLOW
        return is_reached
