"""The open streams of one server: their pending bytes, the number of slow readers, and the end of the last stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from app.contract.counts import Counts, counter, gauge
from app.contract.errors import Overloaded
from app.streaming.flow.flow_window import AccountBytes
from app.streaming.flow.slow_reader import DISCONNECT, SlowReader


@dataclass(slots=True)
class StreamCounts(Counts):
    """The bytes that streams hold for their readers, and the measures taken against slow ones."""

    pending_bytes: int = gauge(
        "quire_stream_pending_bytes",
        "Bytes of tokens, text, log-probabilities and non-streamed responses pending for slow clients.",
    )
    num_merged: int = counter("quire_deltas_merged", "Deltas merged into an earlier one that was still pending.")
    slow_readers: Mapping[str, float] = counter(
        "quire_slow_consumers",
        "Slow clients, by action: paused, coalesced or dropped as requested, or cut (disconnected because the client "
        "read nothing for `--stall-timeout`).",
        by=("action",),
        start={},
    )


class CountedStream(Protocol):
    """A stream that one client reads."""

    @property
    def num_merged(self) -> int:
        """The number of deltas that were merged into an earlier one."""


class Streams:
    """The open streams, and counts since the start. Loop only.

    Pending bytes are counted by account. Above `max_pending_bytes`, new requests of an account are rejected if the
    account has at least an equal share of them. So an account that does not read does not block the others, and all
    pending bytes are at most the limit times the harmonic number of the accounts, plus the open requests.

    Attributes:
        slow_readers: how often a reader lagged, by the action that followed.
        piece_turn: held for a turn of the loop by a reader that is far behind, before its next piece.
    """

    def __init__(self, max_pending_bytes: int | None = None) -> None:
        self.piece_turn = asyncio.Lock()
        self.slow_readers = dict.fromkeys((*map(str, SlowReader), DISCONNECT), 0)
        self._max_pending_bytes = max_pending_bytes
        self._accounts: WeakValueDictionary[str, AccountBytes] = WeakValueDictionary()
        self._open: set[CountedStream] = set()
        self._num_merged = 0  # in streams that have ended
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def counts(self) -> StreamCounts:
        """The counts that the metrics show."""
        return StreamCounts(self.pending_bytes, self.num_merged, self.slow_readers)

    @property
    def num_open(self) -> int:
        """The number of open streams."""
        return len(self._open)

    @property
    def num_merged(self) -> int:
        """The number of deltas that were merged into an earlier one, because the reader had not taken that yet."""
        return self._num_merged + sum(stream.num_merged for stream in self._open)

    @property
    def pending_bytes(self) -> int:
        """The bytes of tokens, their text and log-probabilities that are pending now."""
        return sum(account.num_bytes for account in self._accounts.values())

    def pending_of(self, account: str) -> AccountBytes:
        """Return the counter of `account`; it lasts as long as something refers to it."""
        return self._accounts.setdefault(account, AccountBytes())

    def check_pending(self, account: str) -> None:
        """Reject a new request of `account` while too many bytes are pending, many of them for its own clients.

        Raises:
            Overloaded: more than the limit is pending, and at least an equal share of it for the account.
        """
        limit = self._max_pending_bytes
        if limit is None or (num_bytes := self.pending_bytes) <= limit:
            return
        num_own = self.pending_of(account).num_bytes
        num_others = sum(other.num_bytes > 0 for name, other in self._accounts.items() if name != account)
        if num_own >= limit // (num_others + 1):
            raise Overloaded(
                f"{num_bytes} bytes are pending for clients that do not read them, {num_own} of them for this "
                f"account; this server holds at most {limit} (--max-pending-bytes). Try again later."
            )

    def enter(self, stream: CountedStream) -> None:
        """Count a stream that begins."""
        self._open.add(stream)
        self._is_idle.clear()

    def leave(self, stream: CountedStream) -> None:
        """Count a stream that has ended. Idempotent."""
        if stream in self._open:
            self._open.remove(stream)
            self._num_merged += stream.num_merged
            if not self._open:
                self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no stream is open. Cancel-safe."""
        await self._is_idle.wait()
