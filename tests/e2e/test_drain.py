"""SIGTERM with 50 open streams: every stream finishes, then the process exits with 0."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

NUM_STREAMS = 25  # of each kind
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is Quire?"}],
    "max_tokens": 400,
    "ignore_eos": True,
    "temperature": 0,
}


async def not_ready(client: httpx.AsyncClient) -> httpx.Response:
    """Wait until the server is not ready; return the response."""
    while True:
        ready = await client.get("/readyz")
        if ready.status_code != 200:
            return ready
        await asyncio.sleep(0.01)


async def over_sse(client: httpx.AsyncClient, begun: asyncio.Semaphore) -> str:
    """Read a stream over SSE and return its text; asserts that it is complete."""
    text, lines = "", []
    async with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                if len(lines) == 1:
                    begun.release()
                lines.append(line.removeprefix("data: "))
    assert lines[-1] == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert choices[-1]["finish_reason"] == "length"
    for choice in choices:
        text += choice["delta"].get("content", "")
    return text


async def over_websocket(server: RunningServer, num_streams: int, begun: asyncio.Semaphore) -> list[str]:
    """Read several streams over one socket; asserts that each is complete, and that the socket closes with 1012."""
    texts, kinds = dict.fromkeys(range(num_streams), ""), []
    url = server.url.replace("http", "ws") + "/ws"
    async with connect(url, subprotocols=["quire.v1"], proxy=None, compression=None) as socket:  # type: ignore[list-item]
        await socket.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
        for number in texts:
            start = {"t": "start", "id": str(number), "request": BODY, "credit": 1000}
            await socket.send(json.dumps(start))
        seen = set()
        try:
            while True:
                frame = json.loads(await socket.recv())
                kinds.append(frame["t"])
                if frame["t"] == "delta":
                    texts[int(frame["id"])] += frame["x"]
                    if frame["id"] not in seen:
                        seen.add(frame["id"])
                        begun.release()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None and closed.rcvd.code == 1012
    assert kinds.count("draining") == 1
    assert kinds.count("done") == kinds.count("finish") == num_streams
    assert "error" not in kinds
    return list(texts.values())


async def test_on_sigterm_every_stream_finishes_and_the_process_exits_with_0() -> None:
    with serving("--drain-timeout", str(HANG_S)) as server:
        server.wait_until_ready()
        begun = asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=2 * NUM_STREAMS)
        async with (
            asyncio.timeout(HANG_S),
            httpx.AsyncClient(base_url=server.url, limits=limits, timeout=None) as client,
        ):
            answers = [
                *(asyncio.create_task(over_sse(client, begun)) for _ in range(NUM_STREAMS)),
                *(asyncio.create_task(over_websocket(server, 5, begun)) for _ in range(NUM_STREAMS // 5)),
            ]
            for _ in range(2 * NUM_STREAMS):
                await begun.acquire()
            server.process.send_signal(signal.SIGTERM)
            assert (await not_ready(client)).json()["status"] == "draining"
            rejected = await client.post("/v1/chat/completions", json=BODY)
            assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "draining")
            assert int(rejected.headers["retry-after"]) >= 1
            results = await asyncio.gather(*answers)
        assert server.end() == 0
    texts = [text for result in results for text in ([result] if isinstance(result, str) else result)]
    assert len(texts) == 2 * NUM_STREAMS
    assert len(set(texts)) == 1 and texts[0]


@pytest.mark.long
async def test_a_second_signal_ends_the_process_at_once() -> None:
    with serving() as server:
        server.wait_until_ready()
        begun = asyncio.Semaphore(0)
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            body = {**BODY, "max_tokens": 1900, "n": 8, "temperature": 1}

            async def read() -> None:
                async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
                    async for _ in response.aiter_lines():
                        begun.release()

            reading = asyncio.create_task(read())
            await begun.acquire()
            server.process.send_signal(signal.SIGTERM)
            await not_ready(client)
            assert server.process.poll() is None
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.end) == 0
            assert time.monotonic() - signalled < HANG_S / 10
            await asyncio.wait([reading])
            assert reading.exception() is not None
