"""The hand-off from the engine to one request's reader: a reader who lags gets the same bytes in fewer pieces.

    engine ──put──▶ backlog of each choice ──get, poll──▶ handed over ──next get, poll──▶ delivered
                    └────────────── undelivered: marks ──────────────┘

Deltas are merged as they come in: of each choice at most one waits, with the number of the first, and ids, text and
logprobs of all. Events of different choices have no order between them, so those of other choices do not stand in
between. What was handed over counts as undelivered until the reader asks for more: a reader whose connection is stuck
does not. Above the high mark whoever watches is told, and again once the low one is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.messages import EngineEvent, Finished, FinishReason, Progress, RequestFailed, StreamStatistics, TokenDelta
from app.streaming.backlog import Backlog, delta_bytes


@dataclass(frozen=True, slots=True)
class Marks:
    """How much may be undelivered: above a high mark it is too much, until all low ones are reached."""

    high_tokens: int = 192
    low_tokens: int = 64
    high_bytes: int = 48 * 1024
    low_bytes: int = 16 * 1024


class Mailbox:
    """Implements `EventStream` for a request of `num_choices` choices. Loop only.

    It holds at most what its request may still generate. The stream is complete after one `Finished` per choice or
    one `RequestFailed`; what comes later is dropped.
    """

    def __init__(self, num_choices: int = 1, marks: Marks | None = None) -> None:
        self._num_choices = num_choices
        self._open_choices = set(range(num_choices))
        self._marks = marks or Marks()
        # By choice; the first is the next to be told of. A delta that waits alone, as nearly all do, stays as it is.
        self._backlogs: dict[int, TokenDelta | Backlog] = {}
        self._ends: dict[int, Finished] = {}
        self._failure: RequestFailed | None = None
        self._progress: Progress | None = None
        self._upto: list[int] | None = None  # the last token that may be told of each choice; None: all
        self._cut: set[int] | None = None  # choices that lost text, once nobody wants more of it
        self._waiter: asyncio.Future[None] | None = None  # cheaper than an Event, which every token would pay for
        self._on_news: Callable[[], None] | None = None
        self._on_backlog: Callable[[bool], None] | None = None
        self._is_over_mark = False
        self._is_closed = self._is_nudged = False
        self._num_events = self._num_merged = 0
        self._pending_tokens = self._pending_bytes = 0
        self._handed_tokens = self._handed_bytes = 0

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
        if self.is_complete:
            return
        if isinstance(event, TokenDelta):
            if event.choice not in self._open_choices:
                return
            self._num_events += 1
            self._add_delta(event)
        elif isinstance(event, Finished):
            if event.choice not in self._open_choices:
                return
            self._open_choices.remove(event.choice)
            self._num_events += 1
            if not self._is_closed:
                is_cut = self._cut is not None and event.choice in self._cut
                self._ends[event.choice] = replace(event, reason=FinishReason.CANCELLED) if is_cut else event
        elif isinstance(event, RequestFailed):
            self._open_choices.clear()
            self._num_events += 1
            self._failure = None if self._is_closed else event
        elif not self._is_closed:
            self._progress = event
        self._wake()
        if not self._is_over_mark and self._on_backlog is not None and self._is_above():
            self._is_over_mark = True
            self._on_backlog(True)

    async def get(self) -> list[EngineEvent]:
        """Wait for news and return all of it, merged; [] when the stream is over, or after a `nudge`.

        Cancel-safe: a cancelled `get()` loses no event. One reader at a time.
        """
        while True:
            events: list[EngineEvent] = []
            event = self.poll()
            while event is not None:
                events.append(event)
                event = self._next()
            if events or self._is_over or self._is_nudged:
                self._is_nudged = False
                return events
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def poll(self) -> EngineEvent | None:
        """Return one event that may be told now, or None; whatever was returned before has been delivered."""
        if self._handed_tokens or self._handed_bytes:
            self._handed_tokens = self._handed_bytes = 0
        if self._is_over_mark:
            self._look_at_low_mark()
        return self._next()

    def nudge(self) -> None:
        """Let `get` return once, with nothing if there is nothing."""
        self._is_nudged = True
        self._wake()

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again although nothing new comes."""
        return bool(self._backlogs) or self._is_over_mark or bool(self._ends) or self._failure is not None

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever `poll` may have something; for readers who do not wait in `get`."""
        self._on_news = on_news

    def watch(self, on_backlog: Callable[[bool], None]) -> None:
        """Call `on_backlog(True)` when too much is undelivered, `on_backlog(False)` when that is over."""
        self._on_backlog = on_backlog

    def allow(self, upto: Sequence[int]) -> None:
        """Tell of choice i no more than its token `upto[i]`; numbers never fall, and those left out stay."""
        if self._upto is None:
            self._upto = [0] * self._num_choices
        for choice, number in enumerate(upto[: self._num_choices]):
            self._upto[choice] = max(self._upto[choice], number)
        self._wake()

    def skip(self) -> None:
        """Nobody wants more text: drop what waits and what comes, but not the ends. Idempotent.

        A choice that lost text by it has not been read to its end, so its end says `cancelled`.
        """
        self._cut = (self._cut or set()) | set(self._backlogs)
        for choice in self._cut & set(self._ends):
            self._ends[choice] = replace(self._ends[choice], reason=FinishReason.CANCELLED)
        self._drop_backlogs()
        self._wake()

    def close(self) -> None:
        """Stop listening: what waits and what comes is dropped, a waiting `get()` returns []. Idempotent."""
        self._is_closed = True
        self._drop_backlogs()
        self._ends.clear()
        self._failure = self._progress = None
        self._on_backlog = self._on_news = None
        self._wake()

    def statistics(self) -> StreamStatistics:
        """Return the counts so far."""
        return StreamStatistics(self._num_events, self._num_merged, self._pending_tokens, self._pending_bytes)

    @property
    def _is_over(self) -> bool:
        """Whether nothing more will ever be handed over."""
        is_empty = not (self._backlogs or self._ends or self._failure)
        return self._is_closed or (self.is_complete and is_empty)

    def _add_delta(self, delta: TokenDelta) -> None:
        if self._is_closed:
            return
        choice = delta.choice
        if self._cut is not None:
            self._cut.add(choice)
            return
        self._pending_tokens += len(delta.token_ids)
        self._pending_bytes += delta_bytes(delta)
        before = self._backlogs.get(choice)
        if before is None:
            self._backlogs[choice] = delta
            return
        self._num_merged += 1
        if not isinstance(before, Backlog):
            before = self._backlogs[choice] = Backlog(before)
        before.append(delta)

    def _next(self) -> EngineEvent | None:
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        for choice in self._ends:
            if choice not in self._backlogs:
                return self._ends.pop(choice)
        for choice, backlog in self._backlogs.items():
            delta = self._take(choice, backlog)
            if delta is not None:
                return delta
        # What has failed is told at once, credit or not: a reader could not know that it is worth giving some.
        failure, self._failure = self._failure, None
        if failure is not None:
            self._drop_backlogs()
            self._ends.clear()
        return failure

    def _take(self, choice: int, backlog: TokenDelta | Backlog) -> TokenDelta | None:
        """Hand over what may be told of a choice; what is left of it goes behind the others."""
        upto = None if self._upto is None else self._upto[choice]
        if not isinstance(backlog, Backlog):
            if upto is None or upto >= backlog.first + len(backlog.token_ids) - 1:
                del self._backlogs[choice]
                self._hand_over(backlog)
                return backlog
            backlog = self._backlogs[choice] = Backlog(backlog)
        delta = backlog.take(upto)
        if delta is not None:
            self._hand_over(delta)
            del self._backlogs[choice]
            if backlog.num_tokens:
                self._backlogs[choice] = backlog
        return delta

    def _hand_over(self, delta: TokenDelta) -> None:
        num_tokens, num_bytes = len(delta.token_ids), delta_bytes(delta)
        self._pending_tokens -= num_tokens
        self._pending_bytes -= num_bytes
        self._handed_tokens += num_tokens
        self._handed_bytes += num_bytes

    def _drop_backlogs(self) -> None:
        self._backlogs.clear()
        self._pending_tokens = self._pending_bytes = 0

    def _is_above(self) -> bool:
        num_tokens = self._pending_tokens + self._handed_tokens
        return num_tokens >= self._marks.high_tokens or (
            self._pending_bytes + self._handed_bytes >= self._marks.high_bytes
        )

    def _look_at_low_mark(self) -> None:
        if self._pending_tokens <= self._marks.low_tokens and self._pending_bytes <= self._marks.low_bytes:
            self._is_over_mark = False
            if self._on_backlog is not None:
                self._on_backlog(False)

    def _wake(self) -> None:
        if self._on_news is not None:
            self._on_news()
        elif self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None
