"""A disconnect stops the generation within a step, at any byte and in any phase of the request.

Others: vllm#54947 (still generating after the disconnect), vllm#10806 (a client process that is killed), vllm#14326
(n > 1), xorbitsai/inference#5548, llama.cpp#11720. Thousands of aborts at random points: tests/chaos/test_aborts.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, NamedTuple

import pytest

from tests.api.serving import Connection, until
from tests.regressions.running_server import RunningServer, StepGate, completion, run_server

BUDGET = 32
LONG = 100
"""Prompt tokens: four steps."""
MAX_NUM_SEQS = 4
# Steps run when the client disconnects, by phase of its request; in `queue` another request has all seats.
PHASES = {"queue": 2, "prefill": 2, "decode": 7}


class Disconnect(NamedTuple):
    """How a client requests and disconnects."""

    how: str
    stream: bool
    n: int


CUTS = (1, 2, 15, 16, 100, 333, 334, 1000)
DISCONNECTS = [Disconnect(how, stream, n) for how in ("close", "reset") for stream in (True, False) for n in (1, 3)]


async def connect_to(server: RunningServer) -> Connection:
    """Open a raw connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


async def hang_up(connection: Connection, how: str) -> None:
    """Close the connection normally, or with a reset, as a killed process does."""
    if how == "reset":
        peer: Any = connection.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.writer.transport.abort()
    await connection.close()


async def assert_nothing_leaked(server: RunningServer) -> None:
    """Every block is free, no request runs or waits, and the scheduler's records are consistent."""
    await server.wait_until_idle()
    stats = server.engine.stats()
    assert stats.blocks.num_free == stats.blocks.num_blocks and stats.blocks.num_fenced == 0
    engine = server.engine._port._engine  # type: ignore[attr-defined]
    engine.scheduler.check_integrity()
    assert not engine.output.num_open


async def request_and_disconnect(
    server: RunningServer, gate: StepGate, phase: str, disconnect: Disconnect, name: str, prompt: list[int]
) -> None:
    """Send a request, let the engine run the phase's steps, disconnect, and let the engine continue."""
    num_before, others = server.engine.stats().step, None
    if phase == "queue":
        others = await connect_to(server)
        body = completion(max_tokens=400, n=MAX_NUM_SEQS)
        await others.post("/v1/completions", body, x_request_id=f"others-{name}")
        await until(lambda: server.num_open)
    client, num_open = await connect_to(server), server.num_open + 1
    body = completion(prompt=prompt, max_tokens=300, stream=disconnect.stream, n=disconnect.n)
    await client.post("/v1/completions", body, x_request_id=name)
    await until(lambda: server.num_open == num_open)
    gate.allow(PHASES[phase])
    await server.wait_for_step(num_before + PHASES[phase])
    await hang_up(client, disconnect.how)
    await until(lambda: server.lines_of(name))
    if others is not None:
        await hang_up(others, disconnect.how)
        await until(lambda: server.lines_of(f"others-{name}"))
    gate.allow()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_disconnect_ends_the_request_within_the_current_step(phase: str):
    gate = StepGate()
    settings = {"max_num_batched_tokens": BUDGET, "max_num_seqs": MAX_NUM_SEQS, "itl_target": 0.0}
    async with run_server(gate, **settings) as server:
        for case, disconnect in enumerate(DISCONNECTS):
            num_before, name = server.engine.stats().step, f"case-{case}"
            await request_and_disconnect(
                server, gate, phase, disconnect, name, list(range(50 + case, 50 + case + LONG))
            )
            await assert_nothing_leaked(server)
            gate.hold()
            assert server.engine.stats().step <= num_before + PHASES[phase] + 1, f"{disconnect}: generation continued"
            (line,) = server.lines_of(name)
            num_sampled = (PHASES[phase] - LONG // BUDGET) * disconnect.n if phase == "decode" else 0
            assert (line["reason"], line["completion_tokens"]) == ("client_disconnected", num_sampled)
        num_requests = len(DISCONNECTS) * (2 if phase == "queue" else 1)
        assert await server.metric("quire_requests_aborted_total", reason="cancelled") == num_requests


async def test_a_connection_cut_at_any_byte_leaves_nothing_behind():
    async with run_server() as server:
        assert (await server.complete()).status_code == 200
        num_tasks = len(asyncio.all_tasks())
        body = json.dumps(completion(prompt="the quick brown fox", max_tokens=480, stream=True))
        lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()
        # Cut within the request up to its last byte, then within the response.
        for sent, received in [*((cut, 0) for cut in range(1, len(request))), *((len(request), cut) for cut in CUTS)]:
            num_steps = server.engine.stats().step
            connection = await connect_to(server)
            connection.writer.write(request[:sent])
            await connection.writer.drain()
            await connection.reader.readexactly(received)
            await hang_up(connection, "reset" if (sent + received) % 2 else "close")
            await assert_nothing_leaked(server)
            assert server.engine.stats().step < num_steps + 480, "the output was generated to its end"
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert (await server.complete()).status_code == 200
