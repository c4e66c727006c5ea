"""A whole answer with many log-probabilities is written out a piece at a time, and counted until it is taken."""

import asyncio
import json
import tracemalloc

import pytest
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from app.api.answer import answer
from app.api.chat import prepare_chat
from app.api.chat_format import ChatFormat
from app.api.completion_format import CompletionFormat
from app.api.completions import prepare_completion
from app.errors import Overloaded
from app.streaming.pending import PendingBytes
from tests.api.serving import HANG_S, make_app, raw
from tests.fakes import FakeEngine

NUM_CHOICES, NUM_TOKENS, NUM_TOP = 4, 200, 20
BODIES = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": NUM_TOP},
    "completions": {"prompt": "Hi", "logprobs": NUM_TOP},
}


async def response_to(context, route, **fields):
    """The ASGI app that answers a body."""
    body = BODIES[route] | {"n": NUM_CHOICES, "max_tokens": NUM_TOKENS} | fields
    if route == "chat":
        return answer(context, await prepare_chat(raw(body), context), ChatFormat, Headers())
    return answer(context, await prepare_completion(raw(body), context), CompletionFormat, Headers())


@pytest.mark.parametrize("route", BODIES)
async def test_it_comes_in_pieces_between_which_others_have_their_turn(route):
    context = (await make_app(FakeEngine())).state.context
    pending, messages, turns, counted = context.streams.pending, [], [], []

    async def send(message):
        messages.append(message)
        if message["type"] == "http.response.body":
            assert pending.num_bytes >= len(message["body"]), "it waits until it was taken"
        await asyncio.sleep(0)

    async def tick():
        while True:
            turns.append(context.writing_out.locked())
            if turns[-1]:
                counted.append(pending.num_bytes)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await (await response_to(context, route))({"type": "http"}, asyncio.Queue().get, send)
    ticking.cancel()
    start, *bodies = messages
    whole = b"".join(message["body"] for message in bodies)
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(whole)
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]
    assert counted == sorted(counted) and counted[-1] > len(whole) / 2, "it waits while it is written out, too"
    assert pending.num_bytes == 0
    num_entries = NUM_CHOICES * NUM_TOKENS * (1 + NUM_TOP)
    assert turns.count(True) >= num_entries / 1024, "one piece of about a thousand entries in each turn of the loop"
    if route == "chat":
        assert max(len(message["body"]) for message in bodies) < 128 * 1024
    choices = json.loads(whole)["choices"]
    assert [choice["index"] for choice in choices] == list(range(NUM_CHOICES))
    for choice in choices:
        lists = choice["logprobs"]["content"] if route == "chat" else choice["logprobs"]["text_offset"]
        assert len(lists) == NUM_TOKENS


async def test_where_too_much_waits_by_now_an_answer_that_has_ended_is_not_written_out(monkeypatch):
    context, messages = (await make_app(FakeEngine())).state.context, []
    checks = iter([None, Overloaded("when it was written out"), None])

    def check(pending):
        if error := next(checks):
            raise error

    async def send(message):
        messages.append(message)

    monkeypatch.setattr(PendingBytes, "check", check)
    with pytest.raises(Overloaded, match="written out"):
        await (await response_to(context, "chat"))({"type": "http"}, asyncio.Queue().get, send)
    assert not messages
    assert context.streams.pending.num_bytes == 0


async def test_who_goes_away_while_an_answer_is_written_out_leaves_nothing_behind():
    context, received = (await make_app(FakeEngine())).state.context, asyncio.Queue()
    pending = context.streams.pending

    async def send(message):
        raise AssertionError("it was all written out")

    answering = asyncio.create_task((await response_to(context, "chat"))({"type": "http"}, received.get, send))
    async with asyncio.timeout(HANG_S):
        while not (context.writing_out.locked() and pending.num_bytes):  # noqa: ASYNC110  # it lasts some turns only
            await asyncio.sleep(0)
    received.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await answering
    assert pending.num_bytes == 0


@pytest.mark.parametrize("route", BODIES)
async def test_without_many_log_probabilities_it_is_one_piece(route):
    context, messages = (await make_app(FakeEngine())).state.context, []

    async def send(message):
        messages.append(message)

    off = {"logprobs": None} | ({"top_logprobs": None} if route == "chat" else {})
    await (await response_to(context, route, **off))({"type": "http"}, asyncio.Queue().get, send)
    assert len(messages) == 2
    assert all(choice["logprobs"] is None for choice in json.loads(messages[1]["body"])["choices"])


@pytest.mark.parametrize("route", BODIES)
async def test_streamed_and_whole_tell_the_same(route):
    context = (await make_app(FakeEngine())).state.context
    told = []
    for stream in (False, True):
        body = b""

        async def send(message):
            nonlocal body
            body += message.get("body", b"")

        await (await response_to(context, route, stream=stream, n=2))({"type": "http"}, asyncio.Queue().get, send)
        lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")] or [body]
        told.append({index: [] for index in range(2)})
        for line in lines:
            for choice in json.loads(line)["choices"]:
                found = choice["logprobs"] or {"content": []}
                names = ("content",) if route == "chat" else ("tokens", "token_logprobs", "top_logprobs", "text_offset")
                told[-1][choice["index"]] += zip(*(found.get(name, []) for name in names), strict=True)
    assert told[0] == told[1]
    assert all(len(entries) == NUM_TOKENS for entries in told[0].values())


@pytest.mark.parametrize("route", BODIES)
async def test_it_takes_little_more_memory_than_its_json(route):
    context, num_bytes = (await make_app(FakeEngine())).state.context, 0

    async def send(message):
        nonlocal num_bytes
        num_bytes += len(message.get("body", b""))

    response = await response_to(context, route)
    tracemalloc.start()
    try:
        await response({"type": "http"}, asyncio.Queue().get, send)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes > 200_000
    assert peak <= 2 * num_bytes + 512 * 1024
