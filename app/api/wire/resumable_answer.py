"""Answers that are kept, so that readers can come back to them: how they begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from app.api.http.context import ApiContext
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import Framing
from app.api.wire.wire import Wire
from app.contract.errors import Draining, StreamNotFound
from app.streaming.kept.kept_streams import NO_STREAM
from app.streaming.kept.live_stream import TTL_S, LiveStream

MakeWire = Callable[[ApiRequest, Framing], Wire]
"""Returns the wire of the answer to a request."""
_BYTES_OF_JSON = 8  # about what a byte of JSON takes when it is read


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
    kept_bytes: int = 0,
    ttl_s: float = TTL_S,
) -> LiveStream | None:
    """Return the new stream of a request's answer, which is kept for its readers; None if it cannot be.

    `num_body_bytes` is the length of the request's body, `kept_bytes` the memory of what is kept beside it: its
    idempotency key, and the body for the journal.
    """
    if _shows_prompt(request):
        return None
    stream = LiveStream(
        context.engine,
        request.requests,
        request.id,
        answer=Resumable(_for_readers(request), make_wire),
        answer_bytes=_plan_bytes(request, num_body_bytes) + _asked_bytes(request, num_body_bytes) + kept_bytes,
        ttl_s=ttl_s,
        slow_reader=request.slow_reader,
        streams=context.streams,
        release=request.release,
    )
    return stream if context.kept.keep(stream, request.goes_on_from) else None


def find_answer(context: ApiContext, stream_id: str, tenant: str | None) -> LiveStream:
    """Return a kept stream whose positions are numbers of tokens. Those of other APIs are read there.

    Raises:
        StreamNotFound: see `KeptStreams.find`.
    """
    stream = context.kept.find(stream_id, tenant)
    if Resumable.of(stream).request.asked is not None:
        raise StreamNotFound(NO_STREAM)
    return stream


def recovered_header(stream: LiveStream) -> dict[str, str]:
    """Return the header that says that the rest of an answer may be another one than before a restart, if so."""
    return {"x-quire-recovered": "1"} if stream.is_recovered else {}


async def end_answer(context: ApiContext, stream: LiveStream) -> None:
    """End a stream for all its readers; one that has ended stays as it is. Returns when that is recorded.

    Raises:
        Draining: the server ends before it is.
    """
    stream.cancel()
    if context.journal is not None:
        await context.journal.flush()
        if not stream.is_over:
            raise Draining("The server ends before the cancel is recorded; send it again.")


def _for_readers(request: ApiRequest) -> ApiRequest:
    """Return a request without what only generating needs."""
    first, *others = (each.for_readers() for each in request.requests)
    return replace(request, request=first, others=tuple(others), demand=None, lease=None, ignored=())


def _plan_bytes(request: ApiRequest, num_body_bytes: int) -> int:
    """Return about the memory of the tools that parsers know, at most the body's; that of text alone is nothing."""
    has_tools = request.answer is not None and request.answer.schemas is not None
    return _BYTES_OF_JSON * num_body_bytes if has_tools else 0


def _asked_bytes(request: ApiRequest, num_body_bytes: int) -> int:
    """Return about the memory of what the wire of another API needs of the body, such as the items of its input."""
    return 0 if request.asked is None else num_body_bytes


def _shows_prompt(request: ApiRequest) -> bool:
    """Return whether the first events have parts of the prompt: they have no position, and would come twice."""
    return bool(request.shown.echoes) or request.request.params.prompt_logprobs is not None
