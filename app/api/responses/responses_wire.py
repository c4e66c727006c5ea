"""The bytes of a response: server-sent events, or one JSON body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from app.api.responses.answered_response import AnsweredResponse
from app.api.responses.asked import AskedResponse
from app.api.responses.response_events import ResponseEvent
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import SSE
from app.api.wire.json_line import dump_pieces, text_line
from app.api.wire.wire import JsonBody
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, PromptScored, Timings, TokenDelta, Usage


class ResponsesWire:
    """Implements `Wire` for the response to one request, which has one choice.

    Events have names, and the last one says that it is: there is no `[DONE]`. A reader that has the events up to the
    number `after` gets those behind it; -1 is none.
    """

    media_type = SSE.media_type
    heartbeat = SSE.heartbeat

    def __init__(self, request: ApiRequest, asked: AskedResponse, after: int = -1) -> None:
        self._response = AnsweredResponse(request, asked)
        self._after = after

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield the events that say that the response has begun."""
        yield self._dump(self._response.begin())

    def delta(self, delta: TokenDelta) -> bytes:
        return self._dump(self._response.add(delta))

    def skip(self, delta: TokenDelta) -> None:
        self._response.add(delta)

    def finish(self, finished: Finished) -> bytes:
        return self._dump(self._response.finish(finished.reason))

    def last(self, usage: Usage, span: Timings) -> bytes:
        return self._dump(self._response.end(usage, span))

    def error(self, error: ErrorInfo) -> bytes:
        return self._dump(self._response.fail(error))

    def keep(self, event: TokenDelta | PromptScored) -> None:
        assert isinstance(event, TokenDelta), "no request for a response scores its prompt"
        self._response.add(event)

    def whole(self, ends: Mapping[int, ChoiceEnd], usage: Usage, span: Timings) -> JsonBody:
        """Return the JSON body, whose output is that of the last event of a stream."""
        self._response.finish(ends[0].reason)
        return JsonBody(dump_pieces(self._response.ended(usage, span)), self._response.num_logprobs_bytes)

    def _dump(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join([
            b"event: %b\ndata: %b\n\n" % (event.type.encode(), text_line(event))
            for event in events
            if event.sequence_number > self._after
        ])  # fmt: skip
