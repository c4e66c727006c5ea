"""The bytes of a response: server-sent events, or one JSON body.

Nearly all events add a text to a message and nothing else. The JSON around it is made once, from such an event too: a
token costs one dump of its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from app.api.responses.answered_response import AnsweredResponse
from app.api.responses.asked import AskedResponse
from app.api.responses.open_items import OpenMessage, item_id
from app.api.responses.response_events import ResponseEvent, TextDelta
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import SSE
from app.api.wire.json_line import dump_pieces, one_line, text_line
from app.api.wire.wire import Ending, JsonBody
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, PromptScored, Timings, TokenDelta, Usage

_TYPE = b'{"type":"'
_END = b"\n\n"


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
        self._is_text_alone = self._response.is_text_alone
        if self._is_text_alone:
            message_id = item_id(OpenMessage.prefix, asked.response_id, 0)
            line = _sse(TextDelta(output_index=0, item_id=message_id, delta=""))
            before, key, rest = line.partition(b'"sequence_number":')
            self._before = before + key
            self._between, _, self._behind = rest[len(b"0") :].partition(b'""')

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield the events that say that the response has begun."""
        yield self._dump(self._response.begin())

    def delta(self, delta: TokenDelta) -> bytes:
        if self._is_text_alone and delta.text:
            number = self._response.keep_text(delta.text)
            if number is not None:
                event = b"%b%d%b%b%b" % (self._before, number, self._between, text_line(delta.text), self._behind)
                return event if number > self._after else b""
        return self._dump(self._response.add(delta))

    def skip(self, delta: TokenDelta) -> None:
        self._response.add(delta)

    def finish(self, finished: Finished) -> bytes:
        return self._dump(self._response.finish(finished.reason))

    def last(self, usage: Usage, span: Timings) -> Ending:
        return self._end(self._response.end(usage, span))

    def error(self, error: ErrorInfo) -> Ending:
        return self._end(self._response.fail(error))

    def keep(self, event: TokenDelta | PromptScored) -> None:
        assert isinstance(event, TokenDelta), "no request for a response scores its prompt"
        self._response.add(event)

    def whole(self, ends: Mapping[int, ChoiceEnd], usage: Usage, span: Timings) -> JsonBody:
        """Return the JSON body, whose output is that of the last event of a stream."""
        self._response.finish(ends[0].reason)
        return JsonBody(dump_pieces(self._response.ended(usage, span)), self._response.num_logprobs_bytes)

    def _end(self, events: list[ResponseEvent]) -> Ending:
        """Return the last events, in pieces if the response has log-probabilities."""
        if not self._response.num_logprobs_bytes:
            return self._dump(events)
        return chain.from_iterable(_sse_pieces(event) for event in events if event.sequence_number > self._after)

    def _dump(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join([_sse(event) for event in events if event.sequence_number > self._after])


def _sse(event: ResponseEvent) -> bytes:
    """Return an event, whose name is its type, the first field."""
    line = text_line(event)
    return _head(line) + line + _END


def _sse_pieces(event: ResponseEvent) -> Iterator[bytes]:
    """Yield an event that has log-probabilities in pieces that take a millisecond each."""
    pieces = map(one_line, dump_pieces(event))
    first = next(pieces)
    yield _head(first) + first
    yield from pieces
    yield _END


def _head(line: bytes) -> bytes:
    """Return the bytes in front of the JSON of an event, whose beginning `line` is."""
    return b"event: %b\ndata: " % line[len(_TYPE) : line.index(b'"', len(_TYPE))]
