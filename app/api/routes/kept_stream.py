"""`/v1/streams/{id}`: the rest of a resumable answer, its state, and its end."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.http.context import context_of
from app.api.wire.framing import choose_framing
from app.api.wire.positions import position_text, read_position
from app.api.wire.resumable_answer import end_answer, find_answer
from app.api.wire.stream_response import resumed, stream_headers
from app.streaming.kept.live_stream import LiveStream

END = "end"


async def resume_stream(request: Request) -> ASGIApp:
    """Answer with what a reader lacks, behind its `Last-Event-ID` or `after`; a HEAD with the headers alone."""
    stream = await _stream_of(request)
    # EventSource sends its first query again and again: the header is newer.
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    if after == END:
        return Response(status_code=204)
    positions = [0] * len(stream.transcripts) if after is None else read_position(after, stream)
    framing = choose_framing(request.headers)
    if request.method != "HEAD":
        return resumed(context_of(request), stream, framing, positions)
    told = position_text([transcript.last for transcript in stream.transcripts])
    state = {"x-quire-position": told, "x-quire-state": stream.state}
    head = Response(headers={**stream_headers(stream), **state, "content-type": framing.media_type})
    del head.headers["content-length"]  # a stream has none
    return head


async def cancel_stream(request: Request) -> Response:
    """End a stream for all its readers; one that has ended stays as it is.

    Raises:
        Draining: the server ends before it has recorded that.
    """
    await end_answer(context_of(request), await _stream_of(request))
    return Response(status_code=204)


async def _stream_of(request: Request) -> LiveStream:
    context = context_of(request)
    if context.journal is not None:
        await context.journal.restored()
    return find_answer(context, request.path_params["id"], context.keys.sender_of(request).tenant)
