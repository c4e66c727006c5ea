"""A client that comes back at any number gets every token once: its bytes are those of an undisturbed stream."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from app.api.http.context import ApiContext
from app.api.wire.chat_format import ChatFormat
from app.api.wire.resumable_answer import Resumable
from app.contract.packed_logprobs import Logprobs
from tests.api.resuming import RESUME, Event, events_of, post, told
from tests.api.routes.test_tools import ANSWERS, TOOLS, USER, app_with
from tests.api.serving import SLOW, client_of, connected, make_app, serving, until
from tests.fakes import FakeEngine, Script

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NDJSON = {"accept": "application/x-ndjson"}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two choices": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "token ids and counts": {
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "ranked": {"n": 2, "best_of": 3},
    "timings": {"timings": True},
}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": [300, 301]},
    "two choices": {"prompt": [300, 301], "n": 2},
    "two prompts": {"prompt": [[300, 301], [302, 303]], "n": 2},
    "logprobs": {"prompt": [300, 301], "logprobs": 2},
    "one token": {"prompt": [300, 301], "max_tokens": 1},
}
BODIES = {
    **{f"chat, {name}": (CHAT, {"messages": [USER], "max_tokens": 12, **fields}) for name, fields in CHATS.items()},
    **{f"text, {name}": (TEXT, {"max_tokens": 12, **fields}) for name, fields in TEXTS.items()},
}


def is_end(event: Event) -> bool:
    """Whether an event always comes again."""
    choices = event.payload.get("choices")
    return not choices or any(choice["finish_reason"] for choice in choices)


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs between two of the same text."""
    text = re.sub(r"call_\w{24}", "call", json.dumps(answer))
    return json.loads(text) | dict.fromkeys(("id", "created", "timings"))


async def check_every_seam(client: Any, path: str, body: dict[str, Any], **headers: str) -> None:
    """Compare an undisturbed stream with those of clients that come back behind each event, and at each number."""
    whole = told(events_of((await post(client, path, body, **headers)).text))
    response = await post(client, path, body, **RESUME, **headers)
    url, events = f"/v1/streams/{response.headers['x-quire-stream-id']}", events_of(response.text)
    assert without_ids(told(events)) == without_ids(whole)
    assert all(event.payload["after"] == event.id for event in events if event.data != "[DONE]")
    for index, event in enumerate(events):
        if event.id == "end" or not any(map(int, event.id.split("."))):
            continue
        rest = await client.get(url, headers={"last-event-id": event.id, **headers})
        had = [one for one in events[: index + 1] if not is_end(one)]
        assert told([*had, *events_of(rest.text)]) == told(events), event
    (again,) = [await client.get(url, headers=headers)]
    assert told(events_of(again.text)) == told(events)


@pytest.mark.parametrize("headers", [{}, NDJSON], ids=["SSE", "NDJSON"])
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_every_token_comes_once_at_every_seam(path, body, headers):
    async with client_of(await make_app(FakeEngine())) as client:
        await check_every_seam(client, path, body, **headers)


@pytest.mark.parametrize(("name", "size"), [*((name, 5) for name in ANSWERS), ("reasoning and a call", 1)])
async def test_calls_and_reasoning_go_on_at_every_seam(name, size):
    app, _ = await app_with(ANSWERS[name], ANSWERS["text and calls"], size=size)
    async with client_of(app) as client:
        await check_every_seam(client, CHAT, {"messages": [USER], "tools": TOOLS, "n": 2, "max_tokens": 400})


async def test_a_resumed_answer_has_the_numbers_between_those_of_the_first():
    """A client of single tokens stops inside what another one got at once."""
    async with client_of(await make_app(FakeEngine())) as client:
        response = await post(client, TEXT, {"prompt": [300, 301], "max_tokens": 12}, **RESUME)
        url, whole = f"/v1/streams/{response.headers['x-quire-stream-id']}", told(events_of(response.text))
        text = whole["choices"][0]["text"]
        rests = [told(events_of((await client.get(url, params={"after": number})).text)) for number in range(13)]
    rest_texts = [rest["choices"][0]["text"] for rest in rests]
    assert rest_texts[0] == text
    assert all(text.endswith(rest) for rest in rest_texts)
    assert sorted(map(len, rest_texts), reverse=True) == [*map(len, rest_texts)]
    assert rest_texts[-1] == ""


async def test_the_events_of_a_resumable_stream_have_exactly_these_bytes():
    engine = FakeEngine(Script(answer=["He", "", "llo"]))
    async with client_of(await make_app(engine)) as client:
        response = await post(client, TEXT, {"prompt": [300], "max_tokens": 9, "stream_options": {}}, **RESUME)
        plain = await post(client, TEXT, {"prompt": [300], "max_tokens": 9, "stream_options": {}})
        lines = await post(client, TEXT, {"prompt": [300], "max_tokens": 9, "stream_options": {}}, **RESUME, **NDJSON)
    assert response.headers["x-quire-stream-id"] == engine.requests[0].id
    assert response.headers["x-quire-durable"] == "0"
    assert "x-quire-stream-id" not in plain.headers
    events = response.text.split("\n\n")
    head = f'data: {{"after":"1","id":"{engine.requests[0].id}",'
    assert events[0].startswith(f"id: 1\n{head}")
    assert [event.splitlines()[0] for event in events[:-1]] == ["id: 1", "id: 3", "id: 3", "id: end"]
    assert events[-2:] == ["id: end\ndata: [DONE]", ""]
    rest_of = [body.partition('"model"')[2].partition("\n\n")[0] for body in (response.text, plain.text)]
    assert rest_of[0] == rest_of[1]
    assert [json.loads(line)["after"] for line in lines.text.splitlines()] == ["1", "3", "3"]


@pytest.mark.parametrize("stream_ends_detached", [False, True])
async def test_an_answer_goes_on_without_its_reader(stream_ends_detached: bool):
    engine = FakeEngine(held=True)
    app = await make_app(engine)
    async with serving(app) as url:
        async with connected(url) as connection:
            await connection.post(TEXT, {"prompt": [300, 301], "max_tokens": 8, "stream": True}, x_quire_resume="1")
            await until(lambda: engine.requests)
            engine.step(2)
            _, headers = await connection.head()
            body = await connection.chunk()
        stream_id = headers["x-quire-stream-id"]
        stream = app.state.context.kept.find(stream_id, None)
        await until(lambda: not stream.readers)
        had = events_of(body.decode())
        engine.step(8 if stream_ends_detached else 3)
        if not stream_ends_detached:
            engine.release()
        async with client_of(app) as client:
            rest = await client.get(f"/v1/streams/{stream_id}", headers={"last-event-id": had[-1].id})
            whole = await client.get(f"/v1/streams/{stream_id}")
        assert engine.aborted == []
    assert told([*had, *events_of(rest.text)]) == told(events_of(whole.text))
    assert told(events_of(whole.text))["choices"][0]["finish_reason"] == "length"


async def test_a_reader_a_thousand_tokens_behind_another_gets_every_token_once():
    engine, num_tokens = FakeEngine(held=True), 1900
    app = await make_app(engine)
    async with serving(app) as url, connected(url, receive_buffer=4096) as slow, connected(url) as quick:
        body = {"prompt": [300], "max_tokens": num_tokens, "logprobs": 5, "stream": True}
        await slow.post(TEXT, body, x_quire_resume="1")
        await until(lambda: engine.requests)
        engine.step()
        await slow.head()
        stream = context_of(app).kept.find(engine.requests[0].id, None)
        quick.writer.write(f"GET /v1/streams/{stream.id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await quick.head()
        had = await quick.chunk()
        while engine.port.has_work:
            engine.step(10)
            while (told_so_far := f'"after":"{stream.transcripts[0].last}"'.encode()) not in had:
                had += await quick.chunk()
        had += b"".join(await quick.chunks())
        behind, *_ = stream.readers
        assert stream.num_tokens - behind._num_delivered > 1000
        rest = b"".join(await slow.chunks())
    assert told_so_far in had
    assert told(events_of(rest.decode())) == told(events_of(had.decode()))
    assert told(events_of(had.decode()))["choices"][0]["finish_reason"] == "length"
    assert len(stream.transcripts[0]._token_ids) == num_tokens


async def test_a_reader_that_stalls_is_disconnected_and_can_come_back():
    engine, num_tokens = FakeEngine(), 1900
    app = await make_app(engine, None, SLOW, stall_timeout=0.2)
    async with serving(app) as url, connected(url, receive_buffer=4096) as connection:
        body = {"prompt": [300], "max_tokens": num_tokens, "stream": True}
        await connection.post(TEXT, body, x_quire_resume="1")
        await until(lambda: engine.requests)
        stream = context_of(app).kept.find(engine.requests[0].id, None)
        await until(lambda: app.state.context.streams.slow_readers["cut"])
        await until(lambda: stream.is_over)  # without a reader it is not paused
        async with client_of(app) as client:
            whole = await client.get(f"/v1/streams/{stream.id}", params={"after": "0"})
    assert engine.aborted == []
    assert (stream.num_tokens, stream.readers) == (num_tokens, {})
    assert events_of(whole.text)[-1].id == "end"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (TEXT, {"prompt": "Hi", "echo": True}),
        (TEXT, {"prompt": "Hi", "prompt_logprobs": 1}),
        (CHAT, {"messages": [USER], "stream": False, "stream_options": None}),
    ],
    ids=["echo", "scored prompt", "whole"],
)
async def test_an_answer_that_cannot_be_resumed_is_an_ordinary_one(path, fields):
    app = await make_app(FakeEngine())
    async with client_of(app) as client:
        response = await post(client, path, fields, **RESUME)
    assert "x-quire-stream-id" not in response.headers
    assert '"after"' not in response.text
    assert len(context_of(app).kept) == 0


async def test_what_a_reader_has_is_not_written_again(monkeypatch: pytest.MonkeyPatch):
    """It takes a client nothing to ask for the end of an answer whose log-probabilities are megabytes of JSON."""
    async with client_of(await make_app(FakeEngine())) as client:
        body = {"messages": [USER], "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
        response = await post(client, CHAT, body, **RESUME)
        num_written = []
        logprobs = ChatFormat.logprobs

        def counted(format: ChatFormat, choice: int, rows: Logprobs) -> Any:
            num_written.append(len(rows))
            return logprobs(format, choice, rows)

        monkeypatch.setattr(ChatFormat, "logprobs", counted)
        url = f"/v1/streams/{response.headers['x-quire-stream-id']}"
        for after in (12, 10, 0):
            await client.get(url, params={"after": after})
    assert num_written == [2, 12]


async def test_what_only_the_first_response_says_is_not_kept():
    app = await make_app(FakeEngine())
    async with client_of(app) as client:
        body = {"messages": [USER], "max_tokens": 2, "stop": ["x" * 200], "loudness" * 400: 1}
        response = await post(client, CHAT, body, **RESUME)
        again = await client.get(f"/v1/streams/{response.headers['x-quire-stream-id']}")
    stream = context_of(app).kept.find(response.headers["x-quire-stream-id"], None)
    assert response.headers["x-quire-ignored"].startswith("loudness")
    assert "x-quire-ignored" not in again.headers
    assert Resumable.of(stream).request.ignored == ()
    assert Resumable.of(stream).request.request.params.stop is None


async def test_without_memory_an_answer_is_an_ordinary_one():
    app = await make_app(FakeEngine(), resume_memory=0)
    async with client_of(app) as client:
        response = await post(client, CHAT, {"messages": [USER]}, **RESUME)
    assert "x-quire-stream-id" not in response.headers
    assert "\nid: " not in response.text


def context_of(app: Any) -> ApiContext:
    context: ApiContext = app.state.context
    return context
