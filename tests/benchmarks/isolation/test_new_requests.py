"""The good client's new requests: each of another kind, right or an error, and measured while they are open."""

import asyncio
import json
import time
from contextlib import nullcontext

import pytest

from benchmarks.isolation.new_requests import KINDS, FirstToken, NewRequests
from benchmarks.server_process import local_target
from tests.benchmarks.isolation.attack_server import attack_server


def stream(*texts: str, reason: str = "stop") -> bytes:
    choices = [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    choices += [{"delta": {"content": text}, "finish_reason": None} for text in texts]
    choices += [{"delta": {}, "finish_reason": reason}]
    events = [json.dumps({"choices": [choice]}, separators=(",", ":")) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def response(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def vector(*numbers: float) -> bytes:
    return json.dumps({"data": [{"embedding": numbers}]}).encode()


@pytest.mark.parametrize(
    ("kind", "content", "is_right"),
    [
        ("chat", stream("Quire is", reason="length"), True),
        ("chat", stream(reason="length"), False),
        ("chat", stream("Quire is", reason="stop"), False),
        ("chat", stream("Quire is", reason="length").replace(b"data: [DONE]\n\n", b"data: {}\n\n"), False),
        ("chat", b"not a stream", False),
        ("schema", stream('{"answer1":"yes",', '"count":7}'), True),
        ("schema", stream('{"answer1":"maybe","count":7}'), False),
        ("schema", stream('{"answer1":"yes"', reason="length"), False),
        ("embedding", vector(0.1, -0.2), True),
        ("embedding", vector(), False),
        ("embedding", vector(0.0, 0.0), False),
        ("embedding", vector(0.1, float("nan")), False),
    ],
)
async def test_an_answer_is_checked(kind: str, content: bytes, is_right: bool):
    async with attack_server(response(content)) as server:
        requests = NewRequests(local_target(server.port))
        with nullcontext() if is_right else pytest.raises(RuntimeError, match=rf"a new request \({kind}\) has failed"):
            await requests.ask(kind)
    assert len(requests.waits[kind]) == 1


@pytest.mark.parametrize("name", KINDS)
def test_no_two_requests_are_the_same(name: str):
    assert len({json.dumps(KINDS[name].fields()) for _ in range(10)}) == 10


def test_the_first_token_is_the_first_text_of_a_stream():
    reader, whole = FirstToken(), response(stream("a", "b"))
    text = whole.index(b'"content":"a"')
    pieces = [whole[:text], whole[text : text + 60], whole[text + 60 :]]
    for now, piece in enumerate(pieces):
        reader.feed(piece, float(now))
    assert reader.at == 1.0


def test_the_first_token_of_a_body_is_its_end():
    reader, whole = FirstToken(), response(vector(0.5))
    reader.feed(whole[:-5], 1.0)
    assert reader.at is None
    reader.feed(whole[-5:], 2.0)
    assert reader.at == 2.0


async def test_a_rejected_request_is_an_error():
    async with attack_server(response(b'{"error":"full"}', "503 Service Unavailable")) as server:
        with pytest.raises(RuntimeError, match=r"a new request \(chat\) has failed: status 503, .*full"):
            await NewRequests(local_target(server.port)).run()


async def test_a_request_without_an_answer_counts_as_long_as_it_waits():
    async with attack_server(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n") as server:
        requests = NewRequests(local_target(server.port))
        began = time.perf_counter()
        asking = asyncio.create_task(requests.run())
        await server.is_reached.wait()
        found = requests.longest()
        assert 0 < (found["chat"] or 0) <= time.perf_counter() - began
        assert (found["schema"], found["embedding"]) == (None, None)
        asking.cancel()
