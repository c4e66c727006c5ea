"""Servers under measurement: Quire over a scripted engine or with a model, and the bare protocol.

Only this file of the benchmark imports `app.server`; the clients use the wire.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from app.checkpoint.inspection import inspect
from app.config.settings import Config, make_config
from app.contract.engine_status import EngineHealth, EngineState, ModelInfo
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.observe.log_output import JSON, configure_logging
from app.observe.log_writer import LogWriter
from app.runtime.start_timings import StartTimings
from app.server.run import SWITCH_INTERVAL_S, make_server
from app.server.sockets import listen, urls_of
from app.text.entry.frontend import TextFrontend
from benchmarks.streams.bare import BareServer
from benchmarks.streams.control import Rejected
from benchmarks.streams.gauges import thread_cpu_s
from benchmarks.streams.scripted_engine import ScriptedEngine

ENGINE_THREAD = "quire-engine"
CONTEXT = 1 << 20  # tokens: no scripted stream reaches it
MAX_SEQS = 4096
POLL_S = 0.02


class Source(Protocol):
    """The source of the tokens, controlled by the command."""

    @property
    def num_open(self) -> int:
        """How many streams are open."""

    def pace(self, rate: float) -> None:
        """Generate `rate` tokens a second for each stream: 0 none, infinite as many as the server can send."""

    def quiet_time(self) -> float:
        """Return a near time (monotonic) at which no token is in flight."""

    def finish(self) -> None:
        """End all open streams."""

    def tokens(self) -> dict[int, int]:
        """Return the number of generated tokens of each stream."""


class Served:
    """A listening server.

    Attributes:
        port: its port.
        source: of its tokens; None with a model.
        source_cpu_s: returns the CPU seconds of the source.
    """

    def __init__(self, port: int, source: Source | None, source_cpu_s: Callable[[], float]) -> None:
        self.port = port
        self.source = source
        self.source_cpu_s = source_cpu_s
        self.health: Callable[[], EngineHealth] | None = None
        self.task: asyncio.Task[None] | None = None

    async def wait_until_ready(self, within_s: float) -> None:
        """Wait until the model is loaded.

        Raises:
            Rejected: the server has failed or ended.
            TimeoutError: loading takes too long.
        """
        if self.health is None:
            return
        async with asyncio.timeout(within_s):
            while (health := self.health()).state is not EngineState.READY:
                if health.state is not EngineState.LOADING:
                    raise Rejected(f"the server is {health.state}: {health.message}")
                await asyncio.sleep(POLL_S)


async def serve_bare() -> Served:
    """Serve the bare protocol."""
    config = make_config({"port": 0})
    server, listener = BareServer(), listen(config.server.host, config.server.port, config.server)
    await server.listen(listener)
    return Served(listener.getsockname()[1], server, lambda: server.cpu_s)


async def serve_quire(scripted: type[ScriptedEngine] | None, *, stall_timeout_s: float) -> Served:
    """Serve as `quire serve` does, with its log; over an engine of a `scripted` kind, or with the embedded model."""
    config = make_config(
        {"port": 0, "max_num_seqs": MAX_SEQS, "max_num_batched_tokens": MAX_SEQS, "stall_timeout": stall_timeout_s}
        if scripted
        else {"port": 0, "max_queue": MAX_SEQS}
    )
    files = inspect(config.model)
    text = TextFrontend.load(config.model, files.text)
    writer = LogWriter()
    configure_logging(sys.stderr, writer, JSON)
    listener = listen(config.server.host, config.server.port, config.server)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    source = scripted(_model_info(config, files.spec.vocab_size)) if scripted else None
    # The server uses only those methods of an engine thread that `ScriptedEngine` has.
    engine = cast("EngineThread", source) if source is not None else EngineThread(config)
    console = Console(writer.stream(sys.stderr))
    server = make_server(config, engine, text, console, writer, urls_of(listener), StartTimings())
    served = Served(listener.getsockname()[1], source, lambda: thread_cpu_s(ENGINE_THREAD))
    served.health = server.health
    served.task = asyncio.create_task(server.serve(sockets=[listener]))
    return served


def _model_info(config: Config, vocab_size: int) -> ModelInfo:
    name = Path(config.model.model).name
    return ModelInfo(name, "0", CONTEXT, MAX_SEQS * CONTEXT, vocab_size, max_num_seqs=MAX_SEQS)
