"""A kept response as the JSON of its present state."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.body.parse_request import on_thread
from app.api.http.context import ApiContext
from app.api.responses.answered_response import AnsweredResponse
from app.api.responses.kept.kept_items import asked_of
from app.api.responses.resource import ResponseObject, running_response
from app.api.wire.json_line import dump_pieces
from app.api.wire.response_head import start_message
from app.api.wire.resumable_answer import Resumable, recovered_header
from app.streaming.kept.live_stream import LiveStream


async def told_response(context: ApiContext, stream: LiveStream, ignored: tuple[str, ...] = ()) -> ASGIApp:
    """Return the app that answers with a kept response. Cancel-safe.

    The fields of the request that are `ignored` are named beside it.

    Raises:
        Overloaded: too much is pending for clients that do not read, or for the threads.
    """
    if stream.is_over:
        context.streams.check_pending(stream.account)  # each body is a copy
        body = await on_thread(context, stream.told_bytes, stream.account, _ended_json, stream)
    else:
        body = msgspec.json.encode(_running(stream))
    pending = context.streams.pending_of(stream.account)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"content-type": "application/json", "content-length": str(len(body)), **recovered_header(stream)}
        with pending.counted(len(body)):
            await send(start_message(ignored, headers))
            await send({"type": "http.response.body", "body": body})

    return answer


def _running(stream: LiveStream) -> ResponseObject:
    asked = asked_of(stream)
    assert asked is not None
    return running_response(asked, "queued" if asked.background and not stream.num_tokens else "in_progress")


def last_number(stream: LiveStream) -> int:
    """Return the number of the last event of a response that has ended. Any thread."""
    answered = _read_again(stream)
    if stream.failure is not None:
        answered.fail(stream.failure)
    else:
        [end] = stream.ends.values()
        answered.end(end.usage, end.timings)
    return answered.num_events - 1


def _ended_json(stream: LiveStream) -> bytes:
    """Return the JSON of a response that has ended. Any thread."""
    answered = _read_again(stream)
    if stream.failure is not None:
        return b"".join(dump_pieces(answered.failed(stream.failure)))
    [end] = stream.ends.values()
    return b"".join(dump_pieces(answered.ended(end.usage, end.timings)))


def _read_again(stream: LiveStream) -> AnsweredResponse:
    """Return a response that has ended, up to its last event, as a whole one is made. Any thread."""
    asked = asked_of(stream)
    assert asked is not None
    answered = AnsweredResponse(replace(Resumable.of(stream).request, stream=False), asked)
    answered.begin()
    [transcript] = stream.transcripts
    position = 0
    while position < transcript.last:  # as those who stream it read it, so that its counts are the same
        delta = transcript.delta(position)
        answered.add(delta)
        position += len(delta.token_ids) or 1
    if stream.failure is None:
        [end] = stream.ends.values()
        answered.finish(end.reason)
    return answered
