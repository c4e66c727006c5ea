"""A client that hangs up stops its generation within a step, at whatever byte and in whatever phase it does.

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
from tests.regressions.whole import Paced, Whole, completion, whole_server

BUDGET = 32
LONG = 100
"""Prompt tokens: four steps."""
NUM_SEATS = 4
# Steps done when the client leaves, by the phase it leaves in; in `queue` another one has all seats.
PHASES = {"queue": 2, "prefill": 2, "decode": 7}


class Way(NamedTuple):
    """How a client asks and leaves."""

    how: str
    stream: bool
    n: int


CUTS = (1, 2, 15, 16, 100, 333, 334, 1000)
WAYS = [Way(how, stream, n) for how in ("close", "reset") for stream in (True, False) for n in (1, 3)]


async def connected_to(whole: Whole) -> Connection:
    """A raw connection."""
    host, _, port = whole.url.removeprefix("http://").partition(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


async def hang_up(connection: Connection, how: str) -> None:
    """Close politely, or vanish as a killed process or a lost phone does: with a reset."""
    if how == "reset":
        peer: Any = connection.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.writer.transport.abort()
    await connection.close()


async def assert_nothing_is_left(whole: Whole) -> None:
    """Every block is free, nothing runs or waits, and the books agree."""
    await whole.at_rest()
    stats = whole.engine.stats()
    assert stats.num_free_blocks == stats.num_blocks and stats.num_fenced_blocks == 0
    inside = whole.engine._port._engine  # type: ignore[attr-defined]
    inside.scheduler.check_integrity()
    assert not inside.output.num_open


async def leave(whole: Whole, paced: Paced, phase: str, way: Way, name: str, prompt: list[int]) -> None:
    """Ask, let the engine take the phase's steps, hang up, and let it do what it still wants to."""
    num_before, others = whole.engine.stats().step, None
    if phase == "queue":
        others = await connected_to(whole)
        body = completion(max_tokens=400, n=NUM_SEATS)
        await others.post("/v1/completions", body, x_request_id=f"others-{name}")
        await until(lambda: whole.engine._open)
    leaver, num_open = await connected_to(whole), len(whole.engine._open) + 1
    body = completion(prompt=prompt, max_tokens=300, stream=way.stream, n=way.n)
    await leaver.post("/v1/completions", body, x_request_id=name)
    await until(lambda: len(whole.engine._open) == num_open)
    paced.allow(PHASES[phase])
    await whole.at_step(num_before + PHASES[phase])
    await hang_up(leaver, way.how)
    await until(lambda: whole.lines_of(name))
    if others is not None:
        await hang_up(others, way.how)
        await until(lambda: whole.lines_of(f"others-{name}"))
    paced.allow()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_ends_its_request_with_the_step_that_is_under_way(phase: str):
    paced = Paced()
    settings = {"max_num_batched_tokens": BUDGET, "max_num_seqs": NUM_SEATS, "itl_target": 0.0}
    async with whole_server(paced, **settings) as whole:
        for case, way in enumerate(WAYS):
            num_before, name = whole.engine.stats().step, f"case-{case}"
            await leave(whole, paced, phase, way, name, list(range(50 + case, 50 + case + LONG)))
            await assert_nothing_is_left(whole)
            paced.hold()
            assert whole.engine.stats().step <= num_before + PHASES[phase] + 1, f"{way}: it went on"
            (line,) = whole.lines_of(name)
            num_drawn = (PHASES[phase] - LONG // BUDGET) * way.n if phase == "decode" else 0
            assert (line["reason"], line["completion_tokens"]) == ("client_disconnected", num_drawn)
        num_requests = len(WAYS) * (2 if phase == "queue" else 1)
        assert await whole.metric("quire_requests_aborted_total", reason="cancelled") == num_requests


async def test_a_request_or_an_answer_that_is_cut_at_any_byte_leaves_nothing_behind():
    async with whole_server() as whole:
        assert (await whole.complete()).status_code == 200
        num_tasks = len(asyncio.all_tasks())
        body = json.dumps(completion(prompt="the quick brown fox", max_tokens=450, stream=True))
        lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()
        # Of the request to its last byte, then of the answer.
        for sent, received in [*((cut, 0) for cut in range(1, len(request))), *((len(request), cut) for cut in CUTS)]:
            num_steps = whole.engine.stats().step
            connection = await connected_to(whole)
            connection.writer.write(request[:sent])
            await connection.writer.drain()
            await connection.reader.readexactly(received)
            await hang_up(connection, "reset" if (sent + received) % 2 else "close")
            await assert_nothing_is_left(whole)
            assert whole.engine.stats().step < num_steps + 300, "it was answered to the end"
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert (await whole.complete()).status_code == 200
