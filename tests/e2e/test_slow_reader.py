"""A client that does not read, against `quire serve` and the embedded model: generation pauses, no token is lost."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.serving import Connection
from tests.server.processes import HANG_S, RunningServer
from tests.server.quick_start import serving

STALL_S = 3
NUM_TOKENS = 1900
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is Quire?"}],
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    # These bytes cannot be merged, so that the stream exceeds all buffers on a busy machine, too.
    "logprobs": True,
    "top_logprobs": 5,
}


@pytest.fixture
def server_without_timeout() -> Iterator[RunningServer]:
    """A server without a stall timeout, since a busy machine may read late."""
    with serving("--stall-timeout", "0") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving("--stall-timeout", str(STALL_S)) as running:
        running.wait_until_ready()
        yield running


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """The sum of the samples of a metric."""
    page = (await client.get("/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


async def until(client: httpx.AsyncClient, name: str, value: float) -> None:
    """Wait until a metric has a value."""
    async with asyncio.timeout(HANG_S):
        while True:
            if await metric(client, name) == value:
                return
            await asyncio.sleep(0.02)


async def settled(client: httpx.AsyncClient, name: str) -> float:
    """The value of a metric when two looks find the same: the kernel may accept some bytes after the first pause."""
    before = await metric(client, name)
    while True:
        await asyncio.sleep(0.2)
        now = await metric(client, name)
        if now == before:
            return now
        before = now


async def unread(server: RunningServer) -> Connection:
    """Request a long stream and read nothing of it."""
    connection = await Connection.open(server.url, receive_buffer=4096)
    await connection.post("/v1/chat/completions", BODY)
    return connection


def text_of(stream: bytes) -> str:
    """The text of a stream; asserts that it is complete."""
    events = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_generation_pauses_and_every_byte_is_delivered_when_it_is_read(
    server_without_timeout: RunningServer,
) -> None:
    server = server_without_timeout
    async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
        answer = await client.post("/v1/chat/completions", json=BODY)
        expected = text_of(answer.content)
        num_before = await metric(client, "vllm:generation_tokens_total")
        connection = await unread(server)
        await until(client, "quire_sequences_paused", 1)
        num_generated = await settled(client, "vllm:generation_tokens_total") - num_before
        assert num_generated < NUM_TOKENS
        assert await metric(client, "quire_stream_pending_bytes") < 48 * 1024
        await asyncio.sleep(1)
        assert await metric(client, "vllm:generation_tokens_total") - num_before == num_generated
        status, _ = await connection.head()
        assert status == 200
        assert text_of(b"".join(await connection.chunks())) == expected
        await connection.close()
        await until(client, "vllm:num_requests_running", 0)


async def test_the_stall_timeout_disconnects_the_client_and_frees_its_blocks(server: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
        connection = await unread(server)
        await until(client, r'quire_slow_consumers_total\{[^}]*action="cut"[^}]*\}', 1)
        await until(client, "quire_sequences_paused", 0)
        page = (await client.get("/metrics")).text
        used = re.search(r'^quire_kv_blocks{[^}]*state="used"[^}]*} (\S+)$', page, re.MULTILINE)
        assert used is not None and float(used[1]) == 0
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await connection.head()
            await connection.chunks()
        peer: socket.socket | None = connection.writer.get_extra_info("socket")
        assert peer is not None
        connection.writer.transport.abort()
