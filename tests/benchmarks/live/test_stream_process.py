"""The clients of the benchmark: their streams go on, and what turns of them take is counted."""

import asyncio
import os

import pytest

from benchmarks.api_client import ApiClient, Body
from benchmarks.live.stream_process import Streams, TimedReader
from tests.api.serving import HANG_S, make_app, serving
from tests.fakes import FakeEngine


def test_the_times_between_pieces_are_kept_and_no_others():
    gaps: list[float] = []
    reader = TimedReader(gaps)
    reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", 1.0)
    for now in (1.5, 3.5):
        reader.feed(b"1\r\na\r\n", now)
    assert gaps == [0.5, 2.0] and reader.times == [3.5]


async def test_streams_go_on_while_they_are_measured():
    app = await make_app(FakeEngine())
    async with serving(app) as url, asyncio.timeout(HANG_S):
        streams = Streams(int(url.rpartition(":")[2]), os.getpid())
        await streams.begin(2, 8)
        while not (found := await streams.turn(0.01))["p99_ms"]:
            continue
        assert found["seconds"] >= 0.01
        assert len(streams.streams) == 2 and not any(stream.done() for stream in streams.streams)
        for stream in streams.streams:
            stream.cancel()
        await asyncio.wait(streams.streams)


async def test_tokens_are_those_of_the_servers_metrics(monkeypatch):
    counts = iter([10.0, 35.0])

    async def get(client: ApiClient, path: str) -> Body:
        body = Body()
        body.content = (
            b'vllm:prompt_tokens_total{engine="0"} 7.0\nvllm:generation_tokens_total{engine="0"} %.1f\n' % next(counts)
        )
        return body

    monkeypatch.setattr(ApiClient, "get", get)
    found = await Streams(1, os.getpid()).turn(0.0)
    assert found["num_tokens"] == 25 and found["p99_ms"] == 0


async def test_a_stream_that_is_rejected_ends_the_benchmark():
    app = await make_app(FakeEngine())
    async with serving(app) as url, asyncio.timeout(HANG_S):
        with pytest.raises(RuntimeError, match="rejected"):
            await Streams(int(url.rpartition(":")[2]), os.getpid()).begin(1, 10**6)
