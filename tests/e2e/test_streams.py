"""128 concurrent streams of `quire serve`: each text is byte for byte that of the same request alone."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.client.client import ChatClient, connect

START_S = 120
HANG_S = 240
NUM_STREAMS = 64
QUESTIONS = [
    "What is Quire?",
    "How do I start the server?",
    "Which port does it use?",
    "What is continuous batching?",
    "Tell me about the KV cache.",
    "How do I set an API key?",
    "What happens when a client disconnects?",
    "qzxv 12345 ??? nonsense, please",
]


def request(index: int) -> dict[str, Any]:
    """Request `index`: even ones are greedy, odd ones are sampled with a seed of their own."""
    sampling = {"temperature": 0} if index % 2 == 0 else {"temperature": 2.0, "seed": 1000 + index}
    question = QUESTIONS[index // 2 % len(QUESTIONS)]
    return {"messages": [{"role": "user", "content": question}], "max_tokens": 40, **sampling}


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Run `quire serve` on a free port and yield its address once the model is ready."""
    command = (sys.executable, "-m", "app", "serve", "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            output = ""
            while "Ready:" not in output:
                line = (await process.stdout.readline()).decode()
                assert line, f"the server ended while starting: {output}"
                output += line
        drain = asyncio.create_task(process.stdout.read())
        found = re.search(r"http://[\w.:]+", output)
        assert found is not None
        yield found[0]
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0
        await drain
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def over_sse(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str]:
    """Read a stream over SSE; return its text and finish reason."""
    text, reason = "", ""
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    for event in events[:-1]:
        choice = json.loads(event)["choices"][0]
        text += choice["delta"].get("content", "")
        reason = choice["finish_reason"] or reason
    return text, reason


async def over_websocket(client: ChatClient, body: dict[str, Any]) -> tuple[str, str]:
    """Read a stream over quire.v1; return its text and finish reason."""
    options = {name: value for name, value in body.items() if name != "messages"}
    answer = await client.chat(body["messages"], **options)
    return await answer.text(), answer.ends[0].reason


async def test_each_of_128_concurrent_streams_equals_the_same_request_alone() -> None:
    async with serving() as url, asyncio.timeout(HANG_S):
        limits = httpx.Limits(max_connections=NUM_STREAMS)
        async with (
            httpx.AsyncClient(base_url=url, limits=limits, timeout=HANG_S) as http,
            connect(url) as first,
            connect(url) as second,
            connect(url) as third,
        ):
            sockets = [first, second, third]
            bodies = [request(index) for index in range(NUM_STREAMS)]
            alone = {}
            for index, body in enumerate(bodies):
                if index % 2 or index < 2 * len(QUESTIONS):  # greedy ones repeat after the last question
                    alone[json.dumps(body)] = await over_sse(http, body)
            together = await asyncio.gather(
                *(over_sse(http, body) for body in bodies),
                *(over_websocket(sockets[index % len(sockets)], body) for index, body in enumerate(bodies)),
            )
    expected = [alone[json.dumps(body)] for body in bodies]
    assert together == expected + expected
    assert len({text for text, _ in together}) > NUM_STREAMS // 2, "too many texts are the same"
