"""How soon the engine aborts the request of a disconnected client, and whether thousands of them leak anything.

`python -m benchmarks resets [--count N]`. `guide` behind the real server, in this process. Clients ask over SSE and
quire.v1, read a random part of the output (often nothing) and reset the connection, or send `cancel` on a socket that
stays. Measured is the time from there until the engine reports that the request has ended, which is within the step in
flight. At the end every KV block must be free, and no task or descriptor be left. The clients are written by hand,
since they disconnect at arbitrary points.

Limit: 99 % within 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from app.api.app import create_app
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.commands.options import Parser
from app.config.settings import make_config
from app.contract.engine_status import EngineState, StepReport
from app.contract.events import Finished, RequestFailed
from app.contract.ports import EventSink
from app.contract.requests import EngineRequest
from app.engine.thread import EngineThread
from app.loadgen.figures import percentile
from app.loadgen.table import number, table
from app.observe.metrics import Metrics
from app.observe.terminal import own_terminal
from app.runtime.process_limits import raise_file_limit
from app.server.run import uvicorn_config
from app.server.sockets import listen, reset_at_close, urls_of
from app.streaming.async_engine import AsyncEngine
from app.text.entry.frontend import TextFrontend
from benchmarks.limits import conclude, judge

NUM_AT_ONCE = 16
MAX_TOKENS = 300
POLL_S = 0.001
REST_S = 10.0
START_S = 60.0
WAYS = ("reset SSE", "reset WebSocket", "cancel")


class WatchedEngine(AsyncEngine):
    """Records the client of each request (by its cache salt), and when each request ended."""

    def __init__(self, thread: EngineThread, config: Any) -> None:
        super().__init__(thread, config, self._note)
        self.ids: dict[str, str] = {}
        self.ended: dict[str, float] = {}

    def submit(self, request: EngineRequest, sink: EventSink) -> None:
        """Take a request and note whose it is."""
        super().submit(request, sink)
        self.ids[str(request.cache_salt)] = request.id

    def _note(self, report: StepReport) -> None:
        now = time.perf_counter()
        for event in report.events:
            if isinstance(event, (Finished, RequestFailed)):
                self.ended[event.request_id] = now


class Leaving(NamedTuple):
    """One client that went away: how, and the milliseconds until the engine had ended its request."""

    way: str
    latency_ms: float


class Result(NamedTuple):
    """What came of all of them."""

    leavings: list[Leaving]
    num_used_blocks: int
    num_new_tasks: int
    num_new_files: int


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[WatchedEngine, str]]:
    """Run the server; yield its engine and its URL."""
    config = make_config({"port": 0, "max_queue": 1000})
    thread = EngineThread(config)
    engine = WatchedEngine(thread, config)
    text = TextFrontend.load(config.model, FolderText(resolve(config.model.model)))
    app = create_app(engine, config, text, Metrics("resets", config.cache))
    listener = listen("127.0.0.1", 0, config.server)
    server = uvicorn.Server(uvicorn_config(app, config))
    serving = asyncio.create_task(server._serve([listener]))
    engine.start()
    await until(lambda: engine.health().state is EngineState.READY, START_S)
    try:
        yield engine, urls_of(listener)[0]
    finally:
        await engine.close()
        server.should_exit = True
        await serving


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true in time.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(POLL_S)


def body(name: str, rng: random.Random) -> dict[str, Any]:
    """A chat body whose request can be told by its salt; short and long prompts."""
    content = "What is Quire? " * rng.choice((1, 1, 5, 40))
    return {
        "messages": [{"role": "user", "content": content}], "cache_salt": name, "ignore_eos": True,
        "max_tokens": MAX_TOKENS, "stream": True,
    }  # fmt: skip


async def leave_sse(url: str, name: str, rng: random.Random) -> float:
    """Ask over SSE, read a little, reset; return when."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body(name, rng)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
    await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
    for _ in range(rng.choice((0, 0, 1, 3, 20))):
        await reader.read(1024)
    reset_at_close(writer.get_extra_info("socket"))
    writer.transport.abort()
    left = time.perf_counter()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return left


async def open_socket(url: str) -> ClientConnection:
    """Open a WebSocket and say hello."""
    address = url.replace("http", "ws") + "/ws"
    opened = await connect(address, subprotocols=["quire.v1"], proxy=None, compression=None)  # type: ignore[list-item]
    await opened.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
    await opened.recv()
    return opened


async def leave_stream(opened: ClientConnection, name: str, rng: random.Random, *, is_cancel: bool) -> float:
    """Ask over quire.v1, read a little, then cancel, or reset the socket; return when."""
    await opened.send(json.dumps({"t": "start", "id": name, "request": body(name, rng), "credit": MAX_TOKENS}))
    for _ in range(rng.choice((0, 1, 2, 10))):
        await opened.recv()
    if not is_cancel:
        reset_at_close(opened.transport.get_extra_info("socket"))
        opened.transport.abort()
        return time.perf_counter()
    left = time.perf_counter()
    await opened.send(json.dumps({"t": "cancel", "id": name}))
    while json.loads(await opened.recv())["t"] not in ("done", "error"):
        pass
    return left


async def one_after_the_other(
    worker: int, count: int, engine: WatchedEngine, url: str, leavings: list[Leaving]
) -> None:
    """Come and go `count` times."""
    rng = random.Random(worker)
    opened: ClientConnection | None = None
    for turn in range(count):
        name, way = f"{worker}-{turn}", rng.choice(WAYS)
        if way == "reset SSE":
            left = await leave_sse(url, name, rng)
        else:
            opened = opened or await open_socket(url)
            left = await leave_stream(opened, name, rng, is_cancel=way == "cancel")
            if way == "reset WebSocket":
                opened = None
        with contextlib.suppress(TimeoutError):  # a request that was cut before it was submitted never is
            await until(lambda name=name: name in engine.ids, 0.05)  # type: ignore[misc]
        if name not in engine.ids:
            continue
        request_id = engine.ids.pop(name)
        await until(lambda request_id=request_id: request_id in engine.ended, REST_S)  # type: ignore[misc]
        leavings.append(Leaving(way, max(0.0, engine.ended.pop(request_id) - left) * 1000))
        if sys.stderr.isatty() and len(leavings) % 100 == 0:
            print(f"\r{len(leavings)} gone", end="", file=sys.stderr)
    if opened is not None:
        await opened.close()


async def run_vanishing_clients(count: int) -> Result:
    """Let `count` clients come and go, and look at what is left."""
    leavings: list[Leaving] = []
    async with running() as (engine, url):
        gc.collect()  # what others left behind is not ours
        num_files, num_tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        shares = [count // NUM_AT_ONCE + (worker < count % NUM_AT_ONCE) for worker in range(NUM_AT_ONCE)]
        await asyncio.gather(
            *(one_after_the_other(worker, share, engine, url, leavings) for worker, share in enumerate(shares))
        )
        deadline = time.perf_counter() + REST_S
        while True:
            stats = engine.stats()
            left = Result(
                leavings,
                stats.blocks.num_blocks - stats.blocks.num_free,
                len(asyncio.all_tasks()) - num_tasks,
                len(os.listdir("/proc/self/fd")) - num_files,
            )
            if not any(left[1:]) or time.perf_counter() > deadline:
                return left
            await asyncio.sleep(0.05)


def add_options(parser: Parser) -> None:
    """Add how many clients."""
    parser.add_argument("--count", type=int, default=10_000, help="clients, default 10,000")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if a limit is missed or something is left behind."""
    raise_file_limit()
    result = asyncio.run(run_vanishing_clients(args.count))
    rows = []
    for way in (*WAYS, "all"):
        found = sorted(leaving.latency_ms for leaving in result.leavings if way in (leaving.way, "all"))
        rows.append([way, str(len(found)), *(number(percentile(found, share)) for share in (0.5, 0.99, 1.0))])
    print("\n".join(["", *table(own_terminal(), ["", "clients", "p50 ms", "p99 ms", "max ms"], rows)]))
    p99 = percentile(sorted(leaving.latency_ms for leaving in result.leavings), 0.99)
    left = zip(("blocks", "tasks", "descriptors"), result[1:], strict=True)
    verdicts = [
        judge("resets", "p99 until the engine has ended the request", p99),
        *(judge("resets", f"left behind: {name}", count) for name, count in left),
    ]
    print("\n".join(map(str, verdicts)))
    return conclude(verdicts)
