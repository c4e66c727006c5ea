"""The engine side of a server without the network: async engine, engine thread, tiny model, faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch

from app.config.settings import make_config
from app.contract.admission import admit
from app.contract.engine_status import EngineStats
from app.contract.errors import ModelLoading
from app.contract.events import EngineEvent, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.runtime.clock import monotonic
from app.streaming.async_engine import AsyncEngine
from tests.checkpoints import tiny
from tests.engine import driving
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.fakes import submit

HANG_S = 120.0


@asynccontextmanager
async def engine_thread(faults: FaultyRunner | None = None, **settings: object) -> AsyncIterator[AsyncEngine]:
    """A ready engine inside the `with` block; its thread must end with it."""
    torch.set_num_threads(1)
    config = make_config({"model": str(tiny("Llama")), "num_kv_blocks": 128, "max_queue": 100_000, **settings})
    port = driving.engine_thread(config, faults)
    engine = AsyncEngine(port, config)
    engine.start()
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                engine.model_info()
                break
            except ModelLoading:
                await asyncio.sleep(0.01)
    try:
        yield engine
    finally:
        await engine.close()
        assert port.join(0.0)


def admitted(engine: AsyncEngine, request_id: str, prompt: tuple[int, ...], **params: object) -> EngineRequest:
    """A request admitted as by the API; greedy and ignoring EOS by default."""
    given = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 16, **params})  # type: ignore[arg-type]
    return EngineRequest(request_id, prompt, admit(prompt, given, engine.model_info()), monotonic())


async def read(engine: AsyncEngine, request: EngineRequest) -> list[EngineEvent]:
    """Submit a request and return all its events; deltas may be merged."""
    stream, events = submit(engine, request), []
    async with asyncio.timeout(HANG_S):
        while new_events := await stream.get():
            events += new_events
    return events


def tokens(events: list[EngineEvent]) -> dict[int, list[int]]:
    """Token ids by choice."""
    found: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, TokenDelta):
            found.setdefault(event.choice, []).extend(event.token_ids)
    return found


async def wait_until_idle(engine: AsyncEngine) -> EngineStats:
    """Return the statistics once no request is open, running, waiting or paused."""
    async with asyncio.timeout(HANG_S):
        while True:
            stats = engine.stats()
            if not (stats.queues.num_running or stats.queues.num_waiting or stats.queues.num_paused or engine._open):
                return stats
            await asyncio.sleep(0.005)
