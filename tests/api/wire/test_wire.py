"""The seam: responses know nothing of an API but its wire, here that of a toy."""

import asyncio

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.http.context import StreamTimers
from app.api.wire.stream_response import make_response
from app.contract.errors import ErrorInfo
from tests.api.serving import FAST, make_app, parse, raw
from tests.api.toy_api import ToyWire
from tests.fakes import FakeEngine, Script


async def sent(engine: FakeEngine, *, timers: StreamTimers | None = None, release_after: bytes = b"", **fields: object):
    """The media type and the body of a response with the toy wire, to a chat of two choices."""
    context = (await make_app(engine, **({} if timers is None else {"timers": timers}))).state.context
    body = {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "max_tokens": 9, **fields}
    messages: list[dict] = []

    async def send(message):
        messages.append(message)
        if message.get("body") == release_after:
            engine.release()

    response = make_response(context, await parse(raw(body), context, parse_chat), ToyWire())
    await response({"type": "http"}, asyncio.Queue().get, send)
    start, *bodies = messages
    return dict(start["headers"])[b"content-type"], b"".join(message["body"] for message in bodies)


SCRIPT = Script(["a", "b"], others=[["c"]])


async def test_a_stream_is_what_its_wire_makes_of_the_events():
    body = b"first 0a 1c 1=stop 0b 0=stop last 3"
    assert await sent(FakeEngine(SCRIPT), stream=True) == (b"text/toy", body)


async def test_a_body_is_what_its_wire_makes_of_the_choices():
    assert await sent(FakeEngine(SCRIPT)) == (b"application/json", b"0ab stop 1c stop 3")


async def test_a_heartbeat_is_that_of_the_wire():
    engine = FakeEngine(SCRIPT, held=True)
    _, body = await sent(engine, timers=FAST, release_after=b"beat ", stream=True)
    assert body.startswith(b"beat ") and body.replace(b"beat ", b"") == b"first 0a 1c 1=stop 0b 0=stop last 3"


@pytest.mark.parametrize("num_tokens", [1, 2])
async def test_a_failure_in_a_stream_is_that_of_the_wire(num_tokens):
    engine = FakeEngine(Script(fail_after=num_tokens, error=ErrorInfo("engine_error", "It broke.")))
    _, body = await sent(engine, stream=True)
    assert body.startswith(b"first 0") and body.endswith(b"error engine_error")
