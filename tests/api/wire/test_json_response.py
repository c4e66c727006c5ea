"""A JSON response with many log-probabilities is serialized in pieces; its pending bytes count until they are sent."""

import asyncio
import gc
import json
import tracemalloc

import pytest
from starlette.requests import ClientDisconnect

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.wire.chat_format import ChatFormat
from app.api.wire.completion_format import CompletionFormat
from app.api.wire.framing import SSE
from app.api.wire.openai_wire import OpenAiWire
from app.api.wire.stream_response import make_response
from app.contract.packed_logprobs import row_bytes
from tests.api.serving import make_app, parse, raw, until
from tests.fakes import FakeEngine, turn_loop
from tests.own_process import in_own_process

NUM_CHOICES, NUM_TOKENS, NUM_TOP = 4, 200, 20
BODIES = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": NUM_TOP},
    "completions": {"prompt": "Hi", "logprobs": NUM_TOP},
}


async def response_to(context, route, **fields):
    """The response to a body, as an ASGI app."""
    body = BODIES[route] | {"n": NUM_CHOICES, "max_tokens": NUM_TOKENS} | fields
    parser, format = (parse_chat, ChatFormat) if route == "chat" else (parse_completion, CompletionFormat)
    request = await parse(raw(body), context, parser)
    return make_response(context, request, OpenAiWire(request, format(request), SSE))


@pytest.mark.parametrize("route", BODIES)
async def test_a_large_response_is_sent_in_pieces_and_yields_to_the_loop_between_them(route):
    context = (await make_app(FakeEngine())).state.context
    streams, messages, turns = context.streams, [], []

    async def send(message):
        messages.append(message)
        if message["type"] == "http.response.body":
            assert streams.pending_bytes >= len(message["body"]), "a piece is pending until it was sent"
        await asyncio.sleep(0)

    async def tick():
        while True:
            turns.append(context.piece_lock.locked())
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await (await response_to(context, route))({"type": "http"}, asyncio.Queue().get, send)
    ticking.cancel()
    start, *bodies = messages
    complete = b"".join(message["body"] for message in bodies)
    assert b"content-length" not in dict(start["headers"]), "the length is unknown before all is serialized"
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]
    assert streams.pending_bytes == 0
    num_entries = NUM_CHOICES * NUM_TOKENS * (1 + NUM_TOP)
    assert turns.count(True) >= num_entries / 1024, "one piece of about a thousand entries in each turn of the loop"
    if route == "chat":
        assert max(len(message["body"]) for message in bodies) < 128 * 1024
    choices = json.loads(complete)["choices"]
    assert [choice["index"] for choice in choices] == list(range(NUM_CHOICES))
    for choice in choices:
        lists = choice["logprobs"]["content"] if route == "chat" else choice["logprobs"]["text_offset"]
        assert len(lists) == NUM_TOKENS


@pytest.mark.parametrize("route", BODIES)
async def test_the_packed_logprobs_of_an_unread_response_are_pending(route):
    context = (await make_app(FakeEngine())).state.context
    streams, gone, pieces = context.streams, asyncio.Event(), []

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pieces.append(message.get("body", b""))
        if len(pieces) == 3:
            await asyncio.Event().wait()

    unread = asyncio.create_task((await response_to(context, route))({"type": "http"}, receive, send))
    await until(lambda: len(pieces) == 3)
    await turn_loop()
    assert len(pieces) == 3, "no more is serialized before this piece was sent"
    assert streams.pending_bytes == NUM_CHOICES * NUM_TOKENS * row_bytes(NUM_TOP)
    assert context.streams.num_open == 1, "a drain waits for it"
    assert not context.piece_lock.locked(), "other responses do not wait for it"
    gone.set()
    with pytest.raises(ClientDisconnect):
        await unread
    assert streams.pending_bytes == 0 == context.streams.num_open


@pytest.mark.parametrize("route", BODIES)
async def test_a_response_without_logprobs_is_one_piece(route):
    context, messages = (await make_app(FakeEngine())).state.context, []

    async def send(message):
        messages.append(message)

    off = {"logprobs": None} | ({"top_logprobs": None} if route == "chat" else {})
    await (await response_to(context, route, **off))({"type": "http"}, asyncio.Queue().get, send)
    assert len(messages) == 2
    assert all(choice["logprobs"] is None for choice in json.loads(messages[1]["body"])["choices"])


@pytest.mark.parametrize("route", BODIES)
async def test_streamed_and_complete_responses_have_the_same_logprobs(route):
    context = (await make_app(FakeEngine())).state.context
    found_entries = []
    for stream in (False, True):
        body = b""

        async def send(message):
            nonlocal body
            body += message.get("body", b"")

        await (await response_to(context, route, stream=stream, n=2))({"type": "http"}, asyncio.Queue().get, send)
        lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")] or [body]
        found_entries.append({index: [] for index in range(2)})
        for line in lines:
            for choice in json.loads(line)["choices"]:
                found = choice["logprobs"] or {"content": []}
                names = ("content",) if route == "chat" else ("tokens", "token_logprobs", "top_logprobs", "text_offset")
                found_entries[-1][choice["index"]] += zip(*(found.get(name, []) for name in names), strict=True)
    assert found_entries[0] == found_entries[1]
    assert all(len(entries) == NUM_TOKENS for entries in found_entries[0].values())


def measured_response(route):
    """Serve one response twice; return the bytes of the second, and the most memory Python held for it."""

    async def measure():
        context, num_bytes = (await make_app(FakeEngine())).state.context, 0

        async def send(message):
            nonlocal num_bytes
            num_bytes += len(message.get("body", b""))

        # The first fills the tokenizer's tables.
        await (await response_to(context, route))({"type": "http"}, asyncio.Queue().get, send)
        num_bytes, response = 0, await response_to(context, route)
        gc.collect()  # else the peak depends on when the collector runs next
        tracemalloc.start()
        await response({"type": "http"}, asyncio.Queue().get, send)
        return num_bytes, tracemalloc.get_traced_memory()[1]

    return asyncio.run(measure())


@pytest.mark.parametrize("route", BODIES)
def test_a_large_response_takes_little_memory(route):
    num_bytes, peak = in_own_process(measured_response, route)
    assert num_bytes > 200_000
    assert peak <= num_bytes / 2 + 768 * 1024
