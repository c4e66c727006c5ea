"""The seam: responses know nothing of an API but its wire, here that of a toy."""

import asyncio
from collections import defaultdict

import pytest

from app.api.body.parse_chat import parse_chat
from app.api.http.context import StreamTimers
from app.api.wire.stream_response import make_response
from app.api.wire.wire import JsonBody
from app.contract.errors import ErrorInfo
from tests.api.serving import FAST, make_app, parse, raw
from tests.fakes import FakeEngine, Script


class ToyWire:
    """Each thing that happens is a word, with the text of a choice behind its number."""

    media_type = "text/toy"
    heartbeat = b"beat "

    def __init__(self):
        self.texts = defaultdict(str)

    def first(self, scored=None):
        yield b"first "

    def delta(self, delta):
        return f"{delta.choice}{delta.text} ".encode()

    def finish(self, finished):
        return f"{finished.choice}={finished.reason} ".encode()

    def last(self, usage, span):
        return b"last %d" % usage.completion_tokens

    def error(self, error):
        return f"error {error.code}".encode()

    def keep(self, event):
        self.texts[event.choice] += event.text

    def whole(self, ends, usage, span):
        words = (f"{choice}{text} {ends[choice].reason} ".encode() for choice, text in self.texts.items())
        return JsonBody(iter([*words, b"%d" % usage.completion_tokens]), None)


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
