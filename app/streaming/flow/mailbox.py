"""The mailbox of one request: passes its events to a reader; a slow reader gets the same text in fewer deltas.

    engine ──put──▶ backlog of each choice ──get, poll──▶ handed over ──next get, poll──▶ delivered
                    └────────────── undelivered: watermarks ─────────┘

Rules of this file:
- At most one delta per choice is pending: later ones are merged into it. Events of different choices have no order.
- A large backlog is handed over in pieces, so that writing one out never takes long.
- A piece is delivered when the reader returns for the next one: a reader with a stuck connection does not return.
- The scores of a prompt come before its tokens. They count as pending until the reader returns, but reach no watermark:
  they do not become more while the reader is slow.
- The watermarks are checked before a new event is added, since what came at once has not been pending yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from app.contract.events import (
    ChoiceEnd,
    EngineEvent,
    Finished,
    FinishReason,
    Progress,
    PromptScored,
    RequestFailed,
    TokenDelta,
)
from app.streaming.flow.delta_buffer import PIECE_BYTES, DeltaBuffer
from app.streaming.flow.flow_window import AccountBytes, Credit, FlowWindow, Lag, Watermarks
from app.streaming.flow.open_choices import OpenChoices
from app.streaming.waker import Waker

_CANCELLED = ChoiceEnd(FinishReason.CANCELLED)


class Mailbox(OpenChoices):
    """Implements `EventSink` for a request of `num_choices` choices. Loop only; one reader at a time.

    The stream is complete after one `Finished` per choice or one `RequestFailed`; later events are dropped. `credit`
    limits what is handed over; pending bytes are also counted in `pending`. `on_lag` is called when the lag of the
    reader has changed. A reader with `on_ready` does not wait in `get`: it is called whenever `poll` may return an
    event.

    Attributes:
        num_merged: the number of deltas that were merged into an earlier one.
    """

    def __init__(
        self,
        num_choices: int = 1,
        marks: Watermarks | None = None,
        *,
        credit: Credit | None = None,
        pending: AccountBytes | None = None,
        on_lag: Callable[[Lag], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(range(num_choices))
        self._window = FlowWindow(marks or Watermarks(), pending or AccountBytes())
        self._credit = credit
        self._on_lag = on_lag
        self._waker = Waker()
        self._notify = on_ready or self._waker.wake
        self._last_report: int | None = None
        # By choice, in the order of handing over. A single delta, by far the most frequent case, is kept as it is.
        self._backlogs: dict[int, TokenDelta | DeltaBuffer] = {}
        self._ends: dict[int, Finished] = {}
        self._failure: RequestFailed | None = None
        self._progress: Progress | None = None
        self._scored: PromptScored | None = None
        self._truncated: set[int] | None = None  # after `discard_text`: the choices that lost text
        self._is_closed = self._is_woken = False
        self.num_merged = 0

    def put(self, event: EngineEvent, report: int | None = None) -> None:
        """Add an event and wake the reader. Never blocks.

        `report` numbers the step report that the event is part of: its events have come at once. Without a number the
        event has come alone.
        """
        if not self._open:
            return
        if report is None or report != self._last_report:
            self._last_report = report
            if self._window.check() and self._on_lag is not None:
                self._on_lag(self._window.lag)
        if isinstance(event, TokenDelta):
            if self._begin(event.choice):
                self._add_delta(event)
        elif isinstance(event, Finished):
            if self._begin(event.choice):
                self._add_end(event)
        elif isinstance(event, RequestFailed):
            self._end_all()
            self._failure = None if self._is_closed else event
        elif isinstance(event, PromptScored):
            self._add_scores(event)
        elif isinstance(event, Progress) and not self._is_closed:
            self._progress = event
        self._notify()

    def fail(self, failure: RequestFailed) -> None:
        """End the stream after its pending events; for the reader's side, also within `on_lag`."""
        self.put(failure, self._last_report)

    async def get(self) -> list[EngineEvent]:
        """Wait for events and return them, merged, up to a piece; [] when the stream is over, or after a `wake`.

        Cancel-safe: a cancelled `get()` loses no event.
        """
        if self._window.handed_bytes >= PIECE_BYTES:
            await asyncio.sleep(0)  # let other tasks run between two large pieces
        while True:
            events: list[EngineEvent] = []
            event = self.poll()
            while event is not None:
                events.append(event)
                event = self._next() if self._window.handed_bytes < PIECE_BYTES else None
            if events or self._is_over or self._is_woken:
                self._is_woken = False
                return events
            await self._waker.wait()

    def poll(self) -> EngineEvent | None:
        """Return one event that may be sent now, or None; all events returned before have been delivered."""
        if self._window.deliver() and self._on_lag is not None:
            self._on_lag(self._window.lag)
        if self._window.held_bytes and self._scored is None:
            self._window.release()
        return self._next()

    def wake(self) -> None:
        """Let `get` return once, with [] if there are no events."""
        self._is_woken = True
        self._notify()

    @property
    def has_more(self) -> bool:
        """Whether the reader should poll again without a new event."""
        is_pending = bool(self._backlogs or self._ends or self._scored) or self._failure is not None
        return is_pending or bool(self._window.lag) or self._window.is_much_handed

    @property
    def lacks_credit(self) -> bool:
        """Whether tokens are pending, and none of them may be sent without more credit."""
        credit = self._credit
        if credit is None or not self._backlogs:
            return False
        return all(backlog.first > credit.upto(choice) for choice, backlog in self._backlogs.items())

    def discard_text(self) -> None:
        """Drop pending and later text, but not the ends. Idempotent.

        The end of a choice that lost text gets the reason `cancelled`.
        """
        self._truncated = (self._truncated or set()) | set(self._backlogs)
        for choice in self._truncated & set(self._ends):
            self._ends[choice] = replace(self._ends[choice], end=_CANCELLED)
        self._drop_backlogs()
        self._notify()

    def close(self) -> None:
        """Drop pending and later events; a waiting `get()` returns []. Idempotent."""
        self._is_closed = True
        self._drop_backlogs()
        self._ends.clear()
        self._failure = self._progress = self._on_lag = None
        self._notify = self._waker.wake
        self._notify()

    @property
    def _is_over(self) -> bool:
        """Whether no event will ever be handed over again."""
        is_empty = not (self._backlogs or self._ends or self._scored or self._failure)
        return self._is_closed or (self.is_complete and is_empty)

    def _add_scores(self, scored: PromptScored) -> None:
        if not self._is_closed and self._truncated is None:
            self._scored = scored
            self._window.hold(len(scored.logprobs.rows))

    def _add_delta(self, delta: TokenDelta) -> None:
        if self._is_closed:
            return
        choice = delta.choice
        if self._truncated is not None:
            self._truncated.add(choice)
            return
        num_bytes = self._window.add(delta)
        before = self._backlogs.get(choice)
        if before is None:
            self._backlogs[choice] = delta if num_bytes <= PIECE_BYTES else DeltaBuffer(delta)
            return
        self.num_merged += 1
        if not isinstance(before, DeltaBuffer):
            before = self._backlogs[choice] = DeltaBuffer(before)
        before.append(delta)

    def _add_end(self, end: Finished) -> None:
        self._end(end.choice)
        if self._is_closed:
            return
        if self._truncated is not None and end.choice in self._truncated:
            end = replace(end, end=_CANCELLED)
        self._ends[end.choice] = end

    def _next(self) -> EngineEvent | None:
        if self._progress is not None:
            progress, self._progress = self._progress, None
            return progress
        if self._scored is not None:
            scored, self._scored = self._scored, None
            return scored
        for choice in self._ends:
            if choice not in self._backlogs:
                return self._ends.pop(choice)
        for choice, backlog in self._backlogs.items():
            delta = self._take(choice, backlog)
            if delta is not None:
                return delta
        # A cancelled end does not wait for credit: the client did not know that it should grant some.
        for choice, end in self._ends.items():
            if end.reason is FinishReason.CANCELLED:
                backlog = self._backlogs.pop(choice)
                self._window.hand_over(backlog.take_all() if isinstance(backlog, DeltaBuffer) else backlog)
                return self._ends.pop(choice)
        failure, self._failure = self._failure, None
        if failure is not None:
            self._drop_backlogs()
            self._ends.clear()
        return failure

    def _take(self, choice: int, backlog: TokenDelta | DeltaBuffer) -> TokenDelta | None:
        """Hand over what may be sent of a choice; the rest of its backlog goes behind the other backlogs."""
        upto = None if self._credit is None else self._credit.upto(choice)
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

    def _drop_backlogs(self) -> None:
        self._backlogs.clear()
        self._scored = None
        self._window.drop()
