"""Clients that abort at any time: their requests leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from app.contract.requests import EngineRequest
from app.streaming.async_engine import AsyncEngine
from tests.chaos.engine_thread import admitted, engine_thread, read, wait_until_idle
from tests.engine.schedule.open_requests import num_open

NUM_AT_ONCE = 100


def request_of(engine: AsyncEngine, number: int, rng: random.Random) -> EngineRequest:
    """Short and long requests, with one choice or several or beams, some with a common prefix."""
    prompt = tuple(rng.choices(range(4, 290), k=rng.choice((1, 5, 16, 17, 60))))
    if rng.random() < 0.3:
        prompt = tuple(range(100, 140)) + prompt
    kind = rng.random()
    params: dict[str, object] = {"max_tokens": rng.randrange(1, 60)}
    if kind < 0.2:
        params |= {"n": rng.randrange(2, 5), "temperature": 1.0, "seed": number}
    elif kind < 0.3:
        params |= {"temperature": None, "use_beam_search": True, "beam_width": 3}
    return admitted(engine, str(number), prompt, **params)


async def read_and_abort(engine: AsyncEngine, request: EngineRequest, rng: random.Random) -> None:
    """Read for a while, then abort; sometimes cancel the reading task too, as a session does."""
    reading = asyncio.create_task(read(engine, request))
    for _ in range(rng.choice((0, 0, 1, 3, 10, 40))):
        await asyncio.sleep(0)
    if rng.random() < 0.5:
        await asyncio.sleep(rng.random() * 0.03)
    if rng.random() < 0.2:
        engine.pause(request.id)
    engine.abort(request.id)
    if rng.random() < 0.5:
        reading.cancel()
        engine.abort(request.id)
    with suppress(asyncio.CancelledError):
        await reading


async def abort_many(count: int, **settings: object) -> None:
    """Abort `count` requests, up to `NUM_AT_ONCE` at a time; then check that nothing of them is left."""
    rng = random.Random(count)
    async with engine_thread(**settings) as engine:
        num_tasks = len(asyncio.all_tasks())
        for first in range(0, count, NUM_AT_ONCE):
            requests = [request_of(engine, number, rng) for number in range(first, min(first + NUM_AT_ONCE, count))]
            await asyncio.gather(*(read_and_abort(engine, request, rng) for request in requests))
        stats = await wait_until_idle(engine)
        assert stats.blocks.num_free == stats.blocks.num_blocks and stats.blocks.num_fenced == 0
        assert len(asyncio.all_tasks()) == num_tasks
        inner = engine._port._engine  # type: ignore[attr-defined]
        inner.scheduler.check_integrity()
        assert not inner.output.num_open and not num_open(inner.scheduler)
        last = admitted(engine, "last", tuple(range(30, 60)))
        assert len(await read(engine, last)) > 0


async def test_aborted_requests_leave_nothing_behind():
    await abort_many(400, num_kv_blocks=40, swap_space=2**20)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [{}, {"num_kv_blocks": 40, "swap_space": 2**20}], ids=["many blocks", "few blocks"]
)
async def test_ten_thousand_aborted_requests_leave_nothing_behind(settings: dict[str, object]):
    await abort_many(10_000, **settings)
