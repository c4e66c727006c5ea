"""The hand-off from the engine to one request's reader: a reader who lags gets the same bytes in fewer pieces.

Deltas are merged as they come in: of each choice at most one waits, with the number of the first, and ids, text and
logprobs of all. Events of different choices have no order between them, so those of other choices do not stand in
between. Adding a token costs O(1); the pieces are joined when they are read.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import NamedTuple

from app.messages import EngineEvent, Finished, RequestFailed, TokenDelta


class MailboxStatistics(NamedTuple):
    """Counts of one mailbox: events put in, deltas that were merged into an earlier one, and what waits now."""

    num_events: int
    num_merged: int
    pending_tokens: int
    pending_bytes: int


class Mailbox:
    """Implements `EventStream` for a request of `num_choices` choices. Loop only.

    It holds at most what its request may still generate. The stream is complete after one `Finished` per choice or
    one `RequestFailed`; what comes later is dropped.
    """

    def __init__(self, num_choices: int = 1) -> None:
        self._open_choices = set(range(num_choices))
        self._pending: list[EngineEvent | _Run] = []
        self._delta_places: dict[int, int] = {}  # choice -> where its delta waits in `_pending`
        self._news = asyncio.Event()
        self._is_closed = False
        self._num_events = 0
        self._num_merged = 0
        self._pending_tokens = 0
        self._pending_bytes = 0

    @property
    def is_complete(self) -> bool:
        """Whether the engine has said the last word on this request."""
        return not self._open_choices

    @property
    def num_open_choices(self) -> int:
        """How many choices have not ended."""
        return len(self._open_choices)

    def put(self, event: EngineEvent) -> None:
        """Add an event and wake the reader. Never blocks."""
        if isinstance(event, RequestFailed):
            if self.is_complete:
                return
            self._open_choices.clear()
        elif event.choice not in self._open_choices:
            return
        elif isinstance(event, Finished):
            self._open_choices.remove(event.choice)
        self._num_events += 1
        if self._is_closed:
            return
        if isinstance(event, TokenDelta):
            self._add_delta(event)
        else:
            self._pending.append(event)
        self._news.set()

    async def get(self) -> list[EngineEvent]:
        """Wait for news and return all of it, merged; [] when the stream is over.

        Cancel-safe: a cancelled `get()` loses no event. One reader at a time.
        """
        while not self._pending and not self.is_complete and not self._is_closed:
            self._news.clear()
            await self._news.wait()
        events = [item.joined() if isinstance(item, _Run) else item for item in self._pending]
        self._forget_pending()
        return events

    def close(self) -> None:
        """Stop listening: what waits and what comes is dropped, a waiting `get()` returns []. Idempotent."""
        self._is_closed = True
        self._forget_pending()
        self._news.set()

    def statistics(self) -> MailboxStatistics:
        """Return the counts so far."""
        return MailboxStatistics(self._num_events, self._num_merged, self._pending_tokens, self._pending_bytes)

    def _add_delta(self, delta: TokenDelta) -> None:
        self._pending_tokens += len(delta.token_ids)
        self._pending_bytes += len(delta.text.encode())
        place = self._delta_places.setdefault(delta.choice, len(self._pending))
        if place == len(self._pending):
            self._pending.append(delta)
            return
        self._num_merged += 1
        waiting = self._pending[place]
        if not isinstance(waiting, _Run):
            assert isinstance(waiting, TokenDelta)
            waiting = self._pending[place] = _Run(waiting)
        waiting.append(delta)

    def _forget_pending(self) -> None:
        self._pending = []
        self._delta_places.clear()
        self._pending_tokens = self._pending_bytes = 0


class _Run:
    """Adjacent deltas of one choice on their way to one.

    A token takes 8 bytes and those of its text here; as a delta of its own it takes 250.
    """

    __slots__ = ("_first", "_logprobs", "_text", "_token_ids")

    def __init__(self, first: TokenDelta) -> None:
        self._first = first
        self._token_ids = array("q", first.token_ids)
        self._text = bytearray(first.text, "utf-8")
        self._logprobs = None if first.logprobs is None else list(first.logprobs)

    def append(self, delta: TokenDelta) -> None:
        self._token_ids.extend(delta.token_ids)
        self._text += delta.text.encode()
        if delta.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += delta.logprobs

    def joined(self) -> TokenDelta:
        return self._first._replace(
            token_ids=tuple(self._token_ids),
            text=self._text.decode(),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
        )
