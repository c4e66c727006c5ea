"""quire.v1: answers outlive their socket, and readers come back at any position, on this transport or the other."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from app.api.body import new_answer
from app.api.wire.api_request import ApiRequest
from app.streaming.chat_actions import ChatLimits
from app.streaming.kept.live_stream import MAX_READERS, LiveStream
from tests.api.chat_client import ChatClient, body, open_chat, socket_tasks
from tests.api.resumed_frames import joined, position_behind
from tests.api.resuming import RESUME, events_of, told
from tests.api.routes.test_tools import ANSWERS, TOOLS, USER, app_with
from tests.api.serving import client_of, until
from tests.fakes import FakeEngine, Script, text_of

ALL = 10**6


async def begin(chat: ChatClient, client_id: str = "a", **params: Any) -> dict[str, Any]:
    """Start a stream that outlives its socket; its `accepted`."""
    await chat.send(t="start", id=client_id, request=body(**params), ttl_s=300, credit=ALL)
    (accepted,) = await chat.receive_until("accepted")
    return accepted


async def resume(chat: ChatClient, stream: str, after: list[int], client_id: str = "b", **fields: Any) -> None:
    await chat.send(t="resume", id=client_id, stream=stream, after=after, **fields)


def kept(chat: ChatClient, stream_id: str, tenant: str | None = None) -> LiveStream:
    stream: LiveStream = chat.app.state.context.kept.find(stream_id, tenant)
    return stream


async def check_every_seam(chat: ChatClient, **params: Any) -> None:
    """Compare the frames of a stream with those of readers that come back behind each of its deltas."""
    accepted = await begin(chat, **params)
    frames = [accepted, *await chat.receive_until("done", "error")]
    whole = joined(frames)
    num_choices = len(accepted["after"])
    for index, frame in enumerate(frames):
        if frame["t"] not in ("accepted", "delta"):
            continue
        had = [one for one in frames[: index + 1] if one["t"] in ("accepted", "delta")]
        after = [joined(had)[choice]["position"] for choice in range(num_choices)]
        await resume(chat, accepted["stream"], after, credit=ALL)
        again = await chat.receive_until("done", "error")
        assert again[0] == {**accepted, "id": "b", "after": after}
        assert again[-1] == {**frames[-1], "id": "b", "timings": again[-1]["timings"]}
        assert joined([*had, *again[1:]]) == whole


@pytest.mark.parametrize("params", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}], ids=["one", "two", "rows"])
async def test_every_token_comes_once_at_every_seam(params: dict[str, Any]):
    async with open_chat(FakeEngine()) as chat:
        await check_every_seam(chat, max_tokens=8, **params)


@pytest.mark.parametrize("name", ANSWERS)
async def test_calls_and_reasoning_go_on_at_every_seam(name: str):
    app, _ = await app_with(ANSWERS[name], ANSWERS["text and calls"], size=12)
    async with open_chat(app=app) as chat:
        await check_every_seam(chat, content=USER["content"], tools=TOOLS, n=2, max_tokens=400)


async def test_a_reader_is_limited_by_its_credit_behind_its_position():
    engine = FakeEngine()
    async with open_chat(engine) as chat:
        accepted = await begin(chat, max_tokens=12)
        await chat.receive_until("done")
        whole = text_of(engine.requests[0].prompt_token_ids, 12)
        await resume(chat, accepted["stream"], [3], credit=4)
        frames = await chat.receive_until("delta")
        while position_behind(frames[-1]) < 7:
            frames += await chat.receive_until("delta")
        await chat.send(t="ping")
        assert (await chat.receive())["t"] == "pong"
        await chat.send(t="credit", id="b", upto=[12])
        frames += await chat.receive_until("done")
        assert whole.endswith(text := joined(frames)[0]["x"])
        await resume(chat, accepted["stream"], [0], credit=3)
        had = joined([*await chat.receive_until("delta")])[0]["x"]
        assert had + text == whole


@pytest.mark.parametrize("way", ["close", "reset", "detach"])
async def test_an_answer_goes_on_without_its_socket(way: str):
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        accepted = await begin(chat, max_tokens=6)
        engine.step(2)
        had = [accepted, *await chat.receive_until("delta")]
        stream = kept(chat, accepted["stream"])
        if way == "detach":
            await chat.send(t="detach", id="a")
        elif way == "close":
            await chat.socket.close()
        else:
            chat.socket.transport.abort()
        await until(lambda: not stream.readers)
        engine.release()
        await until(lambda: stream.is_over)
        async with open_chat(app=chat.app) as other:
            await resume(other, accepted["stream"], [position_behind(had[-1])], "a")
            frames = await other.receive_until("done")
    assert engine.aborted == []
    assert joined([*had, *frames[1:]])[0]["x"] == text_of(engine.requests[0].prompt_token_ids, 6)


async def test_with_no_seconds_an_answer_ends_with_its_reader():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(), ttl_s=0)
        accepted = await chat.receive()
        assert (accepted["ttl_s"], accepted["durable"]) == (0, False)
        await chat.send(t="detach", id="a")
        await until(lambda: engine.aborted == [accepted["stream"]])
        await chat.start("a", max_tokens=1)  # the id is free
        assert (await chat.receive())["t"] == "accepted"


@pytest.mark.parametrize("ttl_s", [0, 300])
async def test_a_start_that_is_detached_goes_on_if_it_is_kept(ttl_s: int, monkeypatch: pytest.MonkeyPatch):
    engine, is_held = FakeEngine(held=True), asyncio.Event()
    parse_answer, is_parsing = new_answer.parse_answer, asyncio.Event()

    async def held(*args: Any, **options: Any) -> ApiRequest:
        is_parsing.set()
        await is_held.wait()
        return await parse_answer(*args, **options)

    async with open_chat(engine) as chat:
        monkeypatch.setattr(new_answer, "parse_answer", held)
        await chat.send(t="start", id="a", request=body(), ttl_s=ttl_s)
        await is_parsing.wait()
        await chat.send(t="detach", id="a")
        monkeypatch.undo()
        await chat.send(t="start", id="a", request=body())
        accepted = await chat.receive()
        is_held.set()
        await chat.socket.close()
        await until(lambda: socket_tasks() == [])
        assert len(chat.app.state.context.kept) == len(engine.requests) - 1 == (ttl_s > 0)
        assert engine.aborted == [accepted["stream"]]


async def test_a_cancel_ends_the_stream_for_all_its_readers():
    engine = FakeEngine(Script(answer=["a", "b", "c"]), held=True)
    async with open_chat(engine) as chat, client_of(chat.app) as client:
        accepted = await begin(chat)
        engine.step(2)
        await chat.receive_until("delta")
        await resume(chat, accepted["stream"], [0])
        over_http = asyncio.create_task(client.get(f"/v1/streams/{accepted['stream']}"))
        await until(lambda: len(kept(chat, accepted["stream"]).readers) == 3)
        await chat.send(t="cancel", id="a")
        frames = await chat.receive_until("done", count=2)
        await resume(chat, accepted["stream"], [1], "late")
        late = await chat.receive_until("done")
        error = events_of((await over_http).text)[-1].payload["error"]
    ends = [frame for frame in frames if frame["t"] == "finish"]
    assert [(end["id"], end["finish_reason"]) for end in ends] == [("a", "cancelled"), ("b", "cancelled")]
    assert joined([one for one in frames if one["id"] == "b"])[0]["x"] == "ab"
    assert [frame["t"] for frame in late] == ["accepted", "delta", "finish", "done"]
    assert (late[1]["x"], late[2]["n"], late[2]["finish_reason"]) == ("b", 2, "cancelled")
    assert error["code"] == "stream_cancelled"
    assert engine.aborted == [accepted["stream"]]


async def test_a_cancel_counts_also_if_its_socket_ends_before_the_answer_is_known(monkeypatch: pytest.MonkeyPatch):
    engine, is_held, is_beginning = FakeEngine(held=True), asyncio.Event(), asyncio.Event()
    begin_new = new_answer.NewAnswer.begin

    async def held(new: new_answer.NewAnswer, request: bytes) -> new_answer.BegunAnswer:
        begun = await begin_new(new, request)
        is_beginning.set()
        await is_held.wait()
        return begun

    monkeypatch.setattr(new_answer.NewAnswer, "begin", held)
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(), ttl_s=300)
        await is_beginning.wait()
        await chat.send(t="cancel", id="a")
        await chat.socket.close()
        is_held.set()
        await until(lambda: socket_tasks() == [])
        assert engine.aborted == [engine.requests[0].id]


async def test_a_cancel_behind_a_resume_counts_also_if_its_socket_ends_at_once():
    engine, are_restored = FakeEngine(held=True), asyncio.Event()
    async with open_chat(engine) as chat:
        accepted = await begin(chat)
        restored = Mock(side_effect=are_restored.wait)
        chat.app.state.context.journal = Mock(restored=restored)
        async with open_chat(app=chat.app) as other:
            await resume(other, accepted["stream"], [0])
            await other.send(t="cancel", id="b")
            await until(lambda: restored.called)
            await other.socket.close()
            await until(lambda: socket_tasks().count("quire-ws-writer") == 1)
            assert engine.aborted == []
            are_restored.set()
            await until(lambda: engine.aborted == [accepted["stream"]])
            chat.app.state.context.journal = None


async def test_a_delete_finishes_the_streams_of_sockets_as_cancelled():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat, client_of(chat.app) as client:
        accepted = await begin(chat)
        assert (await client.delete(f"/v1/streams/{accepted['stream']}")).status_code == 204
        frames = await chat.receive_until("done")
    assert [frame["t"] for frame in frames] == ["finish", "done"]
    assert frames[0]["finish_reason"] == "cancelled"


async def test_a_failed_answer_is_told_again_with_its_error():
    async with open_chat(FakeEngine(Script(fail_after=2))) as chat:
        accepted = await begin(chat)
        frames = await chat.receive_until("error")
        await resume(chat, accepted["stream"], [0])
        again = await chat.receive_until("error")
    assert joined([accepted, *frames])[0]["x"] == joined(again)[0]["x"]
    assert again[-1] == {**frames[-1], "id": "b"}


async def test_streams_of_one_transport_are_read_on_the_other():
    async with open_chat(FakeEngine()) as chat, client_of(chat.app) as client:
        accepted = await begin(chat, max_tokens=5)
        frames = [accepted, *await chat.receive_until("done")]
        path = f"/v1/streams/{accepted['stream']}"
        over_http = told(events_of((await client.get(path, params={"after": "2"})).text))
        assert joined(frames)[0]["x"].endswith(over_http["choices"][0]["delta"]["content"])
        text = {"prompt": [[300], [301]], "max_tokens": 3, "stream": True}
        posted = await client.post("/v1/completions", json=text, headers=RESUME)
        whole = told(events_of(posted.text))
        await resume(chat, posted.headers["x-quire-stream-id"], [0, 1])
        again = joined(await chat.receive_until("done"))
    assert again[0]["x"] == whole["choices"][0]["text"]
    assert whole["choices"][1]["text"].endswith(again[1]["x"])


@pytest.mark.parametrize(
    ("stream", "after", "code", "param"),
    [
        ("chatcmpl-no", [0], "stream_not_found", None),
        ("", [0], "stream_not_found", None),
        (None, [9], "invalid_value", "after"),
        (None, [0, 0], "invalid_value", "after"),
        (None, [], "invalid_value", "after"),
        (None, [-1], "invalid_value", "after"),
        (None, [True], "invalid_value", "after"),
        (None, ["0"], "invalid_value", "after"),
        (None, [0] * 129, "invalid_value", "after"),
        (None, 0, "invalid_value", "after"),
        (None, None, "invalid_value", "after"),
        (7, [0], "invalid_value", "stream"),
    ],
)
async def test_a_resume_that_cannot_be_ends_its_id_and_not_the_socket(stream: Any, after: Any, code: str, param: str):
    async with open_chat(FakeEngine()) as chat:
        accepted = await begin(chat, max_tokens=2)
        await chat.receive_until("done")
        await resume(chat, accepted["stream"] if stream is None else stream, after)
        error = await chat.receive()
        assert (error["t"], error["id"], error["code"], error["param"]) == ("error", "b", code, param)
        await resume(chat, accepted["stream"], [0])
        assert (await chat.receive_until("done", "error"))[-1]["t"] == "done"


@pytest.mark.parametrize("ttl_s", [-1, 3601, "300", True, [300]])
async def test_the_seconds_must_be_at_most_an_hour(ttl_s: Any):
    async with open_chat(FakeEngine()) as chat:
        await chat.send(t="start", id="a", request=body(), ttl_s=ttl_s)
        error = await chat.receive()
    assert (error["id"], error["code"], error["param"]) == ("a", "invalid_value", "ttl_s")


async def test_another_keys_stream_is_as_unknown_as_any():
    async with open_chat(FakeEngine(), key="one", api_key=["one", "two"]) as chat:
        accepted = await begin(chat, max_tokens=2)
        await chat.receive_until("done")
        async with open_chat(app=chat.app, key="two") as other:
            errors = []
            for stream in (accepted["stream"], f"chatcmpl-{'0' * 32}"):
                for after in ([0], [0, 0], [99]):
                    await resume(other, stream, after)
                    errors.append(await other.receive())
    assert errors == [errors[0]] * 6
    assert errors[0]["code"] == "stream_not_found"


async def test_a_ninth_reader_is_rejected():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        accepted = await begin(chat)
        for number in range(1, MAX_READERS):
            await resume(chat, accepted["stream"], [0], f"r{number}")
        await resume(chat, accepted["stream"], [0], "ninth")
        frames = [await chat.receive() for _ in range(MAX_READERS)]
        assert [frame["t"] for frame in frames] == ["accepted"] * (MAX_READERS - 1) + ["error"]
        assert (frames[-1]["id"], frames[-1]["code"]) == ("ninth", "rate_limit_exceeded")
        await chat.send(t="detach", id="r1")
        await resume(chat, accepted["stream"], [0], "ninth")
        assert (await chat.receive())["t"] == "accepted"


async def test_all_readers_are_told_of_a_pause_and_a_later_one_too():
    engine = FakeEngine(Script(answer=["x"] * 400))
    async with open_chat(engine) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=400), ttl_s=300, credit=0)
        accepted = await chat.receive()
        assert (await chat.receive())["t"] == "paused"
        await resume(chat, accepted["stream"], [0], credit=0)
        frames = await chat.receive_until("paused")
        assert [(frame["t"], frame["id"]) for frame in frames] == [("accepted", "b"), ("paused", "b")]
        await chat.send(t="credit", id="b", upto=[ALL])
        frames = await chat.receive_until("done")
        assert {frame["id"] for frame in frames if frame["t"] == "resumed"} == {"a", "b"}
        await chat.send(t="credit", id="a", upto=[ALL])
        assert joined([accepted, *await chat.receive_until("done")])[0]["x"] == "x" * 400


async def test_a_reader_without_credit_is_cut_after_the_stall_timeout_and_its_stream_goes_on():
    engine = FakeEngine(Script(answer=["x"] * 400))
    async with open_chat(engine, limits=ChatLimits(stall_timeout_s=0.2)) as chat:
        await chat.send(t="start", id="a", request=body(max_tokens=400), ttl_s=300, credit=0)
        stream = kept(chat, (await chat.receive())["stream"])
        assert await chat.closed() == 4499
        await until(lambda: stream.is_over)
    assert engine.aborted == []


async def test_without_memory_a_stream_ends_with_its_socket():
    engine = FakeEngine(held=True)
    async with open_chat(engine, resume_memory=0) as chat:
        assert chat.welcome["limits"]["ttl_s"] == 0
        accepted = await begin(chat)
        assert accepted["ttl_s"] == 0
        await chat.socket.close()
        await until(lambda: len(engine.aborted) == 1)


async def test_a_draining_server_lets_readers_come_and_go():
    engine = FakeEngine(held=True)
    async with open_chat(engine) as chat:
        accepted = await begin(chat, max_tokens=5)
        drain = asyncio.create_task(chat.app.state.context.drain.run(30))
        await chat.receive_until("draining")
        await resume(chat, accepted["stream"], [0])
        assert (await chat.receive())["t"] == "accepted"
        await chat.send(t="detach", id="a")
        engine.release()
        assert (await chat.receive_until("done"))[-1]["id"] == "b"
        assert await chat.closed() == 1012
        await drain
