"""The hand-off from the engine to one request's reader: a reader who lags gets the same bytes in fewer pieces.

Events go in one by one; `get()` takes all that waits. Adjacent deltas of a choice come out as one: the first number
of the first, ids, text and logprobs joined. Events of different choices have no order between them, so those of
other choices do not stand in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from app.messages import EngineEvent, Finished, RequestFailed, TokenDelta, TokenLogprobs


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
        self._pending: list[EngineEvent] = []
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
        self._pending.append(event)
        if isinstance(event, TokenDelta):
            self._pending_tokens += len(event.token_ids)
            self._pending_bytes += len(event.text.encode())
        self._news.set()

    async def get(self) -> list[EngineEvent]:
        """Wait for news and return all of it, merged; [] when the stream is over.

        Cancel-safe: a cancelled `get()` loses no event. One reader at a time.
        """
        while not self._pending and not self.is_complete and not self._is_closed:
            self._news.clear()
            await self._news.wait()
        events = merge(self._pending)
        self._num_merged += len(self._pending) - len(events)
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

    def _forget_pending(self) -> None:
        self._pending = []
        self._pending_tokens = self._pending_bytes = 0


def merge(events: Sequence[EngineEvent]) -> list[EngineEvent]:
    """Return `events` with adjacent deltas of each choice joined; the order within a choice is kept. Linear time."""
    if len(events) < 2:
        return list(events)
    merged: list[list[TokenDelta] | EngineEvent] = []
    runs: dict[int, list[TokenDelta]] = {}
    for event in events:
        if not isinstance(event, TokenDelta):
            runs.clear()
            merged.append(event)
        elif event.choice in runs:
            runs[event.choice].append(event)
        else:
            runs[event.choice] = run = [event]
            merged.append(run)
    return [_join(item) if isinstance(item, list) else item for item in merged]


def _join(run: list[TokenDelta]) -> TokenDelta:
    if len(run) == 1:
        return run[0]
    logprobs: list[TokenLogprobs] = []
    for delta in run:
        logprobs += delta.logprobs or ()
    return TokenDelta(
        request_id=run[0].request_id,
        choice=run[0].choice,
        first=run[0].first,
        token_ids=tuple(token_id for delta in run for token_id in delta.token_ids),
        text="".join([delta.text for delta in run]),
        logprobs=tuple(logprobs) if any(delta.logprobs is not None for delta in run) else None,
    )
