"""Answers that are kept, so that readers can come back to them: how they begin, and how they are read over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from starlette.types import ASGIApp

from app.api.http.context import ApiContext
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import Framing
from app.api.wire.json_response import JsonResponse
from app.api.wire.numbered_wire import NumberedWire
from app.api.wire.stream_response import StreamResponse
from app.api.wire.wire import Wire
from app.contract.errors import InvalidValue
from app.streaming.kept.live_stream import TTL_S, LiveStream
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


def keep_answer(
    context: ApiContext,
    request: ApiRequest,
    make_wire: MakeWire,
    *,
    num_body_bytes: int,
    key_bytes: int = 0,
    ttl_s: float = TTL_S,
) -> LiveStream | None:
    """Return the new stream of a request's answer, which is kept for its readers; None if it cannot be.

    `num_body_bytes` is the length of the request's body, `key_bytes` the memory of its idempotency key.
    """
    if _shows_prompt(request):
        return None
    stream = LiveStream(
        context.engine,
        request.requests,
        request.id,
        answer=Resumable(_for_readers(request), make_wire),
        answer_bytes=_plan_bytes(request, num_body_bytes) + key_bytes,
        ttl_s=ttl_s,
        slow_reader=request.slow_reader,
        streams=context.streams,
        release=request.release,
    )
    return stream if context.kept.keep(stream) else None


def resumed(
    context: ApiContext,
    stream: LiveStream,
    framing: Framing,
    after: Sequence[int] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> ASGIApp:
    """Return the app that sends what a stream tells behind the positions `after`, or its whole answer as one body.

    `headers` are sent beside those of all resumable streams. When called, the app raises what `LiveStream.attach`
    raises, before anything is sent.

    Raises:
        Overloaded: the answer is one body, and too much is pending for clients that do not read.
    """
    request, make_wire = Resumable.of(stream)
    reader, wire, headers = (
        StreamReader(stream, after),
        make_wire(request, framing),
        {**stream_headers(stream), **headers},
    )
    if not request.stream and after is None:
        context.streams.check_pending(stream.account)  # unlike a stream, each body is a copy
        return JsonResponse(context, request, reader, wire, headers)
    return StreamResponse(context, request, reader, NumberedWire(wire, framing, reader.after), headers)


def stream_headers(stream: LiveStream) -> dict[str, str]:
    """Return the headers of a response of a resumable stream, which the end of the process ends."""
    return {"x-quire-stream-id": stream.id, "x-quire-durable": "0"}


def read_position(text: str, stream: LiveStream) -> list[int]:
    """Return a reader's positions, joined by dots, as the stream has told it.

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
    return check_positions([*map(int, parts)], stream)


def check_positions(positions: Sequence[int], stream: LiveStream) -> list[int]:
    """Return a reader's positions, as the stream has told it.

    Raises:
        InvalidValue: they are of another number of choices, or were not told yet.
    """
    if len(positions) != len(stream.transcripts):
        raise InvalidValue(
            f"after has {len(positions)} positions; send one for each of the {len(stream.transcripts)} choices.",
            param="after",
        )
    has_rest = Resumable.of(stream).request.answer is not None  # see NumberedWire
    for choice, (position, transcript) in enumerate(zip(positions, stream.transcripts, strict=True)):
        last = transcript.last + (has_rest and choice in stream.ends)
        if position > last:
            raise InvalidValue(
                f"after is {position} for choice {choice}, which has been told up to {last}; send the position that "
                "you have.",
                param="after",
            )
    return [*positions]


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _for_readers(request: ApiRequest) -> ApiRequest:
    """Return a request without what only generating needs."""
    first, *others = (each.for_readers() for each in request.requests)
    return replace(request, request=first, others=tuple(others), demand=None, lease=None, ignored=())


def _plan_bytes(request: ApiRequest, num_body_bytes: int) -> int:
    """Return about the memory of the tools that parsers know, at most the body's; that of text alone is nothing."""
    has_tools = request.answer is not None and request.answer.schemas is not None
    return _BYTES_OF_JSON * num_body_bytes if has_tools else 0


def _shows_prompt(request: ApiRequest) -> bool:
    """Return whether the first events have parts of the prompt: they have no position, and would come twice."""
    return bool(request.shown.echoes) or request.request.params.prompt_logprobs is not None
