"""The complete server in the test's process: real engine with a tiny model, HTTP over sockets, access log, metrics.

With a `StepGate` the engine thread runs only the steps that a test allows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from app.api.app import create_app
from app.checkpoint.names import served_name
from app.config.settings import make_config
from app.contract.engine_status import EngineState
from app.engine.schedule.step_plan import StepPlan
from app.journal.store import JournalStore
from app.observe.log import ACCESS_LOGGER, JsonFormatter
from app.observe.metrics import Metrics
from app.runtime.clock import monotonic
from app.streaming.async_engine import AsyncEngine
from app.text.grammar.cache import GrammarCache
from tests.api.serving import load_text, serving, until
from tests.checkpoints import tiny
from tests.engine.driving import engine_thread
from tests.engine.execute.faulty_runner import FaultyRunner

HANG_S = 60
_SAMPLE = re.compile(r"(\S+?)(?:\{(.*)\})? (\S+)")


class StepGate(FaultyRunner):
    """Each step waits until the test allows it."""

    def __init__(self, allowed: int = 0) -> None:
        self._may_step = threading.Semaphore(allowed)

    def before_launch(self, plan: StepPlan) -> None:
        assert self._may_step.acquire(timeout=HANG_S), "this step was never allowed"

    def allow(self, count: int = 10_000) -> None:
        """Let the engine run `count` more steps."""
        self._may_step.release(count)

    def hold(self) -> None:
        """Allow no further steps; call it only while the engine is idle."""
        self._may_step = threading.Semaphore(0)


class OffsetClock:
    """Monotonic time plus an offset that a test sets."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def __call__(self) -> float:
        return monotonic() + self._offset_s

    def skip(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self._offset_s += seconds


class AccessLog(logging.Handler):
    """Collects the parsed lines of the access log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(json.loads(self.format(record)))


class RunningServer:
    """A running server.

    Attributes:
        url: the base URL.
        engine: the engine client on the event loop, for its statistics.
        client: an HTTP client for the server.
        log: the access log.
        clock: the clock of the engine's deadlines.
    """

    def __init__(
        self, url: str, engine: AsyncEngine, client: httpx.AsyncClient, log: AccessLog, clock: OffsetClock
    ) -> None:
        self.url = url
        self.engine = engine
        self.client = client
        self.log = log
        self.clock = clock

    @property
    def num_open(self) -> int:
        """Number of open requests."""
        return len(self.engine._open)

    async def complete(self, **body: Any) -> httpx.Response:
        """Post a completion; by default greedy and of 16 tokens."""
        return await self.client.post("/v1/completions", json=completion(**body))

    async def streamed(self, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
        """Post a completion, or a body to another path, and return its events."""
        payload = completion(**body) if path == "/v1/completions" else body
        async with self.client.stream("POST", path, json={**payload, "stream": True}) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    async def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, summed over the samples that have these labels."""
        found = []
        for line in (await self.client.get("/metrics")).text.splitlines():
            sample = _SAMPLE.fullmatch(line)
            if sample and sample[1] == name:
                given = dict(re.findall(r'(\w+)="(.*?)"', sample[2] or ""))
                if labels.items() <= given.items():
                    found.append(float(sample[3]))
        assert found, f"there is no metric {name} {labels}"
        return sum(found)

    async def wait_for_step(self, step: int) -> None:
        """Wait until the engine has run `step` steps."""
        await until(lambda: self.engine.stats().step >= step)

    async def wait_until_idle(self) -> None:
        """Wait until no request is open, running, waiting or paused."""
        await until(lambda: not self.num_open and not _num_unfinished(self.engine))

    def lines_of(self, request_id: str) -> list[dict[str, Any]]:
        """The access log's lines with this request id."""
        return [line for line in self.log.records if line["request_id"] == request_id]


def completion(**body: Any) -> dict[str, Any]:
    """The body of a completion request; greedy and ignoring EOS by default."""
    return {"prompt": list(range(10, 30)), "temperature": 0, "ignore_eos": True, **body}


@asynccontextmanager
async def run_server(
    faults: FaultyRunner | None = None, folder: Path | None = None, **settings: object
) -> AsyncIterator[RunningServer]:
    """Serve a tiny model inside the `with` block; the engine thread must end with it."""
    torch.set_num_threads(1)
    config = make_config({"model": str(folder or tiny("Llama")), "num_kv_blocks": 128, **settings})
    metrics, clock = Metrics(served_name(config.model)), OffsetClock()
    grammars = GrammarCache(is_served=True)
    thread = engine_thread(config, faults, clock, grammars)
    engine = AsyncEngine(thread, config, metrics.observe)
    journal = None if config.server.journal is None else JournalStore(Path(config.server.journal))
    app = create_app(engine, config, load_text(config), metrics, grammars=grammars, journal=journal)
    engine.start()
    log, logger = AccessLog(), logging.getLogger(ACCESS_LOGGER)
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        await until(lambda: engine.health().state is EngineState.READY)
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=HANG_S) as client:
            yield RunningServer(url, engine, client, log, clock)
            if isinstance(faults, StepGate):
                faults.allow()
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)  # of other tests of this process
        await engine.close()
        assert thread.join(0.0)


def _num_unfinished(engine: AsyncEngine) -> int:
    stats = engine.stats()
    return stats.queues.num_running + stats.queues.num_waiting + stats.queues.num_paused


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task, which closes the connection it reads from, and wait until the task ends."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
