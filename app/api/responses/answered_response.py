"""One response as it is answered: all of its events, each with its number, and the response that it becomes.

The number of an event is its place among those of the deltas as they are fed. So a client that comes back gets the
same numbers if it is fed the same deltas from the beginning.
"""

from __future__ import annotations

from app.api.responses.asked import AskedResponse
from app.api.responses.output_items import OutputItem
from app.api.responses.resource import (
    ResponseObject,
    begun_response,
    cancelled_response,
    ended_response,
    failed_response,
)
from app.api.responses.response_assembler import ResponseAssembler
from app.api.responses.response_events import (
    Completed,
    Created,
    Failed,
    Incomplete,
    InProgress,
    Queued,
    ResponseEvent,
)
from app.api.responses.text_logprobs import TextLogprobs
from app.api.wire.api_request import ApiRequest
from app.contract.errors import ErrorInfo, StreamCancelled
from app.contract.events import FinishReason, Timings, TokenDelta, Usage
from app.text.reading.answer_events import Event, Text


class AnsweredResponse:
    """Makes the events of one response. One owner, on the loop.

    Each method returns the events of what it takes. A response that is not streamed is made in the same way, and its
    events are dropped. Without `repeats_logprobs` the last event of a stream has no log-probabilities.
    """

    def __init__(self, request: ApiRequest, asked: AskedResponse, *, repeats_logprobs: bool = True) -> None:
        self._asked = asked
        self._parsers = request.new_parsers()
        self._logprobs: TextLogprobs | None = None
        if asked.has_logprobs:
            self._logprobs = TextLogprobs(request.token_bytes, in_deltas=request.stream, at_end=repeats_logprobs)
        self._assembler = ResponseAssembler(asked, self._logprobs)
        self._reason = FinishReason.STOP
        self._num_events = 0
        self._is_queued = asked.background

    @property
    def num_logprobs_bytes(self) -> int | None:
        """The memory of the log-probabilities that are kept for the end; None without any."""
        return None if self._logprobs is None else self._logprobs.num_bytes

    def begin(self) -> list[ResponseEvent]:
        """Return the events before all others."""
        if self._is_queued:
            begun = begun_response(self._asked, "queued")
            return self._numbered([Created(response=begun), Queued(response=begun)])
        begun = begun_response(self._asked, "in_progress")
        return self._numbered([Created(response=begun), InProgress(response=begun)])

    @property
    def num_events(self) -> int:
        """The number of events so far."""
        return self._num_events

    @property
    def is_text_alone(self) -> bool:
        """Whether the output is one message, and its deltas are text and nothing else."""
        return self._parsers is None and self._logprobs is None

    def keep_text(self, text: str) -> int | None:
        """Take text of an output that is text alone; return the number of its event, which is not made.

        None, and the text is not taken, if it begins the message.
        """
        if not self._assembler.keep_text(text):
            return None
        self._num_events += 1
        return self._num_events - 1

    def add(self, delta: TokenDelta) -> list[ResponseEvent]:
        """Take new tokens."""
        events: tuple[Event, ...]
        events = (Text(delta.text),) if self._parsers is None else self._parsers.feed(delta).events
        return self._numbered([*self._leave_queue(), *self._assembler.take(events, delta.logprobs)])

    def finish(self, reason: FinishReason) -> list[ResponseEvent]:
        """Take why the model has ended."""
        self._reason = reason
        rest = [] if self._parsers is None else self._assembler.take(self._parsers.finish(0).events)
        ended = self._assembler.end(is_cut=reason is not FinishReason.STOP)
        return self._numbered([*self._leave_queue(), *rest, *ended])

    def ended(self, usage: Usage, span: Timings) -> ResponseObject:
        """Return the response, which has ended."""
        num_reasoning = None if self._parsers is None else self._parsers.reasoning_tokens
        return ended_response(self._asked, self._assembler.output, self._reason, usage, span, num_reasoning)

    def end(self, usage: Usage, span: Timings) -> list[ResponseEvent]:
        """Take the end; return the last event."""
        kind = Completed if self._reason is FinishReason.STOP else Incomplete
        return self._numbered([kind(response=self.ended(usage, span))])

    def fail(self, error: ErrorInfo) -> list[ResponseEvent]:
        """Take an error; return the last event. The item that is open has no end, so that nobody makes half a call."""
        begun = [] if self._num_events else self.begin()
        kind = Incomplete if error.code == StreamCancelled.code else Failed
        return begun + self._numbered([kind(response=self.failed(error))])

    def failed(self, error: ErrorInfo) -> ResponseObject:
        """Return the response that an error has ended, or that was cancelled."""
        if error.code == StreamCancelled.code:
            return cancelled_response(self._asked, self._assembler.output)
        return failed_response(self._asked, self._assembler.output, error)

    @property
    def output(self) -> list[OutputItem]:
        """The items so far; one that is open is incomplete."""
        return self._assembler.output

    def _leave_queue(self) -> list[ResponseEvent]:
        """Return the event that a response in the background is no longer waiting, once."""
        if not self._is_queued:
            return []
        self._is_queued = False
        return [InProgress(response=begun_response(self._asked, "in_progress"))]

    def _numbered(self, events: list[ResponseEvent]) -> list[ResponseEvent]:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return events
