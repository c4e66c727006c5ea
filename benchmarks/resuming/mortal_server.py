"""A server with a journal that is killed, and started again on the same port."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from app.loadgen.target import Target
from app.runtime.clock import monotonic
from benchmarks.isolation.ending import runs
from benchmarks.isolation.memory import tree
from benchmarks.server_process import ServerProcess, listening, local_target

KEY = "choose-one"
DEATH_S = 60.0
POLL_S = 0.01
METRICS_S = 60.0


class MortalServer:
    """One server after the other, of the same model, journal and port. Use as an async context manager.

    Attributes:
        orphans: the processes that have outlived their server.
        num_kills: how often it was killed.
    """

    def __init__(self, model: str, journal: Path, options: Sequence[str] = ()) -> None:
        self.orphans: list[int] = []
        self.num_kills = 0
        self._is_ready = asyncio.Event()
        self._children: list[int] = []
        self._arguments = [model, "--api-key", KEY, "--journal", str(journal), *options]
        self._log = journal.with_suffix(".log")
        self._stack = ExitStack()
        self._server: ServerProcess | None = None
        self._port: int | None = None

    async def __aenter__(self) -> MortalServer:
        await self.start()
        await self.until_ready()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self._stack.close)

    @property
    def server(self) -> ServerProcess:
        """The process that runs, or has run last."""
        assert self._server is not None
        return self._server

    @property
    def target(self) -> Target:
        """The server for its clients, of every process the same."""
        assert self._port is not None
        return local_target(self._port, KEY)

    async def start(self) -> None:
        """Start a process, and return when it listens; its model may still be loaded.

        Raises:
            RuntimeError: it does not start, such as because the port is not free.
        """
        port = [] if self._port is None else ["--port", str(self._port)]
        starting = listening(*self._arguments, *port, log=self._log)
        self._server = await asyncio.to_thread(self._stack.enter_context, starting)
        self._port = self._server.port

    async def until_ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            RuntimeError: the process has ended, or it takes too long.
        """
        await self.server.wait_until_ready()
        self._is_ready.set()

    async def alive(self) -> int:
        """Wait until the server can answer; return `num_kills`."""
        await self._is_ready.wait()
        return self.num_kills

    def kill(self) -> None:
        """Send SIGKILL to the process, also to one that has ended. `until_dead` must follow."""
        self.num_kills += 1
        self._is_ready.clear()
        self._children = [*tree(self.server.pid)][1:]
        self.server.send(signal.SIGKILL)

    async def until_dead(self) -> None:
        """Wait until a killed process has ended, and its children; those that do not are orphans."""
        give_up = monotonic() + DEATH_S
        while self.server.exit_code() is None or any(map(runs, self._children)):
            if monotonic() > give_up:
                break
            await asyncio.sleep(POLL_S)
        self.orphans += filter(runs, self._children)

    def drain(self) -> None:
        """Ask the process to end once its answers are complete."""
        self.server.send(signal.SIGTERM)

    async def fill_disk(self) -> None:
        """Let no file of the process grow any more, and wait until its journal has noticed that.

        Raises:
            RuntimeError: it has not.
        """
        _, hard = resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (0, hard))
        give_up = monotonic() + DEATH_S
        while not await self.metric("quire_journal_state"):
            if monotonic() > give_up:
                raise RuntimeError("the journal has not noticed that its disk is full")
            await asyncio.sleep(POLL_S)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels.

        Raises:
            OSError, TimeoutError: the server does not answer.
        """
        page = (await self.server.client(METRICS_S, KEY).get("/metrics")).content.decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M))
