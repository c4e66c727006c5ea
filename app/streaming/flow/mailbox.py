"""The hand-off from the engine to one request's reader: a reader who lags gets the same bytes in fewer pieces.

    engine ──put──▶ backlog of each choice ──get, poll──▶ handed over ──next get, poll──▶ delivered
                    └────────────── undelivered: marks ──────────────┘

Deltas are merged as they come in: of each choice at most one waits, with the number of the first, and ids, text and
logprobs of all. Events of different choices have no order between them, so those of other choices do not stand in
between. Much is handed over in pieces, so that writing one out never takes long. What was handed over counts as
undelivered until the reader asks for more: a reader whose connection is stuck does not. Whoever watches is told when
too much is undelivered, and when that is over. It is looked at when more comes: what came at once, however much, has
not been waiting yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.contract.events import EngineEvent, Finished, FinishReason, Progress, RequestFailed, TokenDelta
from app.contract.ports import ByteCount, StreamStatistics
from app.streaming.flow.delta_buffer import PIECE_BYTES, DeltaBuffer
from app.streaming.flow.flow_window import FlowWindow, Watermarks
from app.streaming.waker import Waker


class Mailbox:
    """Implements `EventStream` for a request of `num_choices` choices. Loop only.

    It holds at most what its request may still generate. The stream is complete after one `Finished` per choice or
    one `RequestFailed`; what comes later is dropped.
    """

    def __init__(self, num_choices: int = 1, marks: Watermarks | None = None) -> None:
        self._num_choices = num_choices
        self._open_choices = set(range(num_choices))
        self._window = FlowWindow(marks or Watermarks())
        self._turn: int | None = None
        # By choice; the first is the next to be told of. A delta that waits alone, as nearly all do, stays as it is.
        self._backlogs: dict[int, TokenDelta | DeltaBuffer] = {}
        self._ends: dict[int, Finished] = {}
        self._failure: RequestFailed | None = None
        self._progress: Progress | None = None
        self._upto: list[int] | None = None  # the last token that may be told of each choice; None: all
        self._cut: set[int] | None = None  # choices that lost text, once nobody wants more of it
        self._waker = Waker()
        self._on_news: Callable[[], None] | None = None
        self._on_high_water: Callable[[int], None] | None = None
        self._is_closed = self._is_nudged = False
        self._num_events = self._num_merged = 0

    @property
    def is_complete(self) -> bool:
        """Whether the engine has said the last word on this request."""
        return not self._open_choices

    @property
    def num_open_choices(self) -> int:
        """How many choices have not ended."""
        return len(self._open_choices)

    def put(self, event: EngineEvent, turn: int | None = None) -> None:
        """Add an event and wake the reader. Never blocks.

        Events of one `turn` have come at once; without a number each has come by itself.
        """
        if not self._open_choices:
            return
        if turn is None or turn != self._turn:
            self._turn = turn
            if self._window.check() and self._on_high_water is not None:
                self._on_high_water(self._window.lag)
        if isinstance(event, TokenDelta):
            if event.choice in self._open_choices:
                self._num_events += 1
                self._add_delta(event)
        elif isinstance(event, Finished):
            if event.choice in self._open_choices:
                self._num_events += 1
                self._add_end(event)
        elif isinstance(event, RequestFailed):
            self._open_choices.clear()
            self._num_events += 1
            self._failure = None if self._is_closed else event
        elif not self._is_closed:
            self._progress = event
        self._wake()

    def fail(self, failure: RequestFailed) -> None:
        """End the stream from the reader's side: behind what waits its reader is told why."""
        self.put(failure, self._turn)

    async def get(self) -> list[EngineEvent]:
        """Wait for news and return it, merged, of much a piece; [] when the stream is over, or after a `wake`.

        Cancel-safe: a cancelled `get()` loses no event. One reader at a time.
        """
        if self._window.handed_bytes >= PIECE_BYTES:
            await asyncio.sleep(0)  # others have their turn between two large pieces
        while True:
            events: list[EngineEvent] = []
            event = self.poll()
            while event is not None:
                events.append(event)
                event = self._next() if self._window.handed_bytes < PIECE_BYTES else None
            if events or self._is_over or self._is_nudged:
                self._is_nudged = False
                return events
            await self._waker.wait()

    def poll(self) -> EngineEvent | None:
        """Return one event that may be told now, or None; whatever was returned before has been delivered."""
        if self._window.deliver() and self._on_high_water is not None:
            self._on_high_water(self._window.lag)
        return self._next()

    def wake(self) -> None:
        """Let `get` return once, with nothing if there is nothing."""
        self._is_nudged = True
        self._wake()

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again although nothing new comes."""
        undelivered = self._window
        is_waiting = bool(self._backlogs or self._ends) or self._failure is not None
        return is_waiting or bool(undelivered.lag) or undelivered.is_much_handed

    @property
    def lacks_credit(self) -> bool:
        """Whether something waits, and all of it for credit."""
        upto = self._upto
        if upto is None or not self._backlogs:
            return False
        return all(backlog.first > upto[choice] for choice, backlog in self._backlogs.items())

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever `poll` may have something; for readers who do not wait in `get`."""
        self._on_news = on_news

    def watch(self, on_high_water: Callable[[int], None]) -> None:
        """Call `on_high_water` when the reader falls behind or catches up, with how far it is behind now (`Lag`)."""
        self._on_high_water = on_high_water

    def count_in(self, pending: ByteCount) -> None:
        """Count what waits here in a common sum, too; before anything does."""
        self._window.pending = pending

    def grant_credit(self, upto: Sequence[int]) -> None:
        """Tell of choice i no more than its token `upto[i]`; numbers never fall, and those left out stay."""
        if self._upto is None:
            self._upto = [0] * self._num_choices
        for choice, number in enumerate(upto[: self._num_choices]):
            self._upto[choice] = max(self._upto[choice], number)
        self._wake()

    def discard_text(self) -> None:
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
        self._on_high_water = self._on_news = None
        self._wake()

    def statistics(self) -> StreamStatistics:
        """Return the counts so far."""
        undelivered = self._window
        return StreamStatistics(
            self._num_events, self._num_merged, undelivered.waiting_tokens, undelivered.waiting_bytes
        )

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
        num_bytes = self._window.add(delta)
        before = self._backlogs.get(choice)
        if before is None:
            self._backlogs[choice] = delta if num_bytes <= PIECE_BYTES else DeltaBuffer(delta)
            return
        self._num_merged += 1
        if not isinstance(before, DeltaBuffer):
            before = self._backlogs[choice] = DeltaBuffer(before)
        before.append(delta)

    def _add_end(self, end: Finished) -> None:
        self._open_choices.remove(end.choice)
        if self._is_closed:
            return
        if self._cut is not None and end.choice in self._cut:
            end = replace(end, reason=FinishReason.CANCELLED)
        self._ends[end.choice] = end

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
        # What was given up is told at once, credit or not: a reader could not know that it is worth giving some.
        for choice, end in self._ends.items():
            if end.reason is FinishReason.CANCELLED:
                self._forget(choice)
                return self._ends.pop(choice)
        failure, self._failure = self._failure, None
        if failure is not None:
            self._drop_backlogs()
            self._ends.clear()
        return failure

    def _take(self, choice: int, backlog: TokenDelta | DeltaBuffer) -> TokenDelta | None:
        """Hand over what may be told of a choice; what is left of it goes behind the others."""
        upto = None if self._upto is None else self._upto[choice]
        if not isinstance(backlog, DeltaBuffer):
            if upto is None or upto >= backlog.first + len(backlog.token_ids) - 1:
                del self._backlogs[choice]
                self._window.hand_over(backlog)
                return backlog
            backlog = self._backlogs[choice] = DeltaBuffer(backlog)
        delta = backlog.take(upto)
        if delta is not None:
            self._window.hand_over(delta)
            del self._backlogs[choice]
            if backlog.num_tokens:
                self._backlogs[choice] = backlog
        return delta

    def _forget(self, choice: int) -> None:
        """Drop what waits of one choice."""
        backlog = self._backlogs.pop(choice)
        self._window.hand_over(backlog.take_all() if isinstance(backlog, DeltaBuffer) else backlog)

    def _drop_backlogs(self) -> None:
        self._backlogs.clear()
        self._window.drop()

    def _wake(self) -> None:
        if self._on_news is not None:
            self._on_news()
        else:
            self._waker.wake()
