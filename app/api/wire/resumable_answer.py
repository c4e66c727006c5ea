"""Answers a request, and lets its readers come back if they ask for it: `X-Quire-Resume: 1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp

from app.api.http.context import ApiContext, context_of
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import Framing, choose_framing
from app.api.wire.numbered_wire import NumberedWire
from app.api.wire.response_head import ignored_header
from app.api.wire.stream_response import StreamResponse, make_response
from app.api.wire.wire import Wire
from app.contract.errors import InvalidValue
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.stream_reader import StreamReader

MakeWire = Callable[[ApiRequest, Framing], Wire]
"""Returns the wire of the answer to a request."""
_BYTES_OF_JSON = 8  # about what a byte of JSON takes when it is read
_MAX_DIGITS = 9  # of a position


class Resumable(NamedTuple):
    """The `answer` of a live stream: the request, and the function that returns the writer of its bytes."""

    request: ApiRequest
    make_wire: MakeWire

    @classmethod
    def of(cls, stream: LiveStream) -> Resumable:
        """Return that of a stream."""
        assert isinstance(stream.answer, cls)
        return stream.answer


def answer(http: Request, request: ApiRequest, make_wire: MakeWire) -> ASGIApp:
    """Return the app that answers; one whose stream is kept says so with its headers.

    When called, the app raises what `EngineClient.submit` raises, before anything is sent.
    """
    context, framing = context_of(http), choose_framing(http.headers)
    if http.headers.get("x-quire-resume") == "1" and request.stream and not _shows_prompt(request):
        stream = LiveStream(
            context.engine,
            request.requests,
            request.id,
            answer=Resumable(_for_readers(request), make_wire),
            answer_bytes=_plan_bytes(context, http, request),
            slow_reader=request.slow_reader,
            streams=context.streams,
            release=request.release,
        )
        if context.kept.keep(stream):
            return resumed(context, stream, framing, [0] * request.num_choices, ignored_header(request.ignored))
    return make_response(context, request, make_wire(request, framing))


def resumed(
    context: ApiContext,
    stream: LiveStream,
    framing: Framing,
    after: Sequence[int],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> ASGIApp:
    """Return the app that sends what a stream tells behind the positions `after`; `headers` are those of this response.

    When called, the app raises what `LiveStream.attach` raises, before anything is sent.
    """
    request, make_wire = Resumable.of(stream)
    wire = NumberedWire(make_wire(request, framing), framing, after)
    return StreamResponse(context, request, StreamReader(stream, after), wire, {**stream_headers(stream), **headers})


def stream_headers(stream: LiveStream) -> dict[str, str]:
    """Return the headers of a response of a resumable stream, which the end of the process ends."""
    return {"x-quire-stream-id": stream.id, "x-quire-durable": "0"}


def read_position(text: str, stream: LiveStream) -> list[int]:
    """Return a reader's positions, as the stream has told it.

    Raises:
        InvalidValue: they are none, of another number of choices, or were not told yet.
    """
    parts, num_choices = text.split("."), len(stream.transcripts)
    if len(parts) != num_choices or not all(map(_is_position, parts)):
        raise InvalidValue(
            f"after is {text[:100]!r}; send the `id` or `after` of the last event that you have: a number for each of "
            f"the {num_choices} choices, joined by dots, or `end`.",
            param="after",
        )
    positions = [*map(int, parts)]
    has_rest = Resumable.of(stream).request.answer is not None  # see NumberedWire
    for choice, (position, transcript) in enumerate(zip(positions, stream.transcripts, strict=True)):
        last = transcript.last + (has_rest and choice in stream.ends)
        if position > last:
            raise InvalidValue(
                f"after is {text[:100]!r}, but choice {choice} has been told up to {last}; send the position that you "
                "have.",
                param="after",
            )
    return positions


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _for_readers(request: ApiRequest) -> ApiRequest:
    """Return a request without what only generating needs."""
    first, *others = (each.for_readers() for each in request.requests)
    return replace(request, request=first, others=tuple(others), demand=None, lease=None, ignored=())


def _plan_bytes(context: ApiContext, http: Request, request: ApiRequest) -> int:
    """Return about the memory of the tools that parsers know, at most the body's; that of text alone is nothing."""
    if request.answer is None or request.answer.schemas is None:
        return 0
    length = http.headers.get("content-length", "")
    num_bytes = int(length) if length.isdecimal() else context.config.server.max_request_bytes
    return _BYTES_OF_JSON * num_bytes


def _shows_prompt(request: ApiRequest) -> bool:
    """Return whether the first events have parts of the prompt: they have no position, and would come twice."""
    return bool(request.shown.echoes) or request.request.params.prompt_logprobs is not None
