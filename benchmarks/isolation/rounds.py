"""The rows of a round, and their servers: one for all rows of a setup, or in the last round one for each row."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from benchmarks.isolation.attack_table import ATTACKS
from benchmarks.isolation.ending import end
from benchmarks.isolation.row import FAILURES, METRICS_S, Row, measure, until_idle
from benchmarks.isolation.setups import KV_CACHE_BYTES, Setup
from benchmarks.server_process import ServerProcess, serving

DEATH_S = 3.0  # between a connection that fails and the end of the process


class Model(NamedTuple):
    """The checkpoint that is served; those that single rows want instead are beside it."""

    path: Path
    context: int


class Servers:
    """The server of the row that is measured: of the same setup the same one, until it is closed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._stack = ExitStack()
        self._open: tuple[object, ServerProcess] | None = None
        self._starter = ThreadPoolExecutor(1)
        self._prepared: Future[tuple[ServerProcess, ExitStack]] | None = None

    def of(self, setup: Setup) -> ServerProcess:
        """Return the server of a setup, perhaps the one that was prepared; the one of another setup is closed.

        Raises:
            RuntimeError: it does not start.
        """
        if self._open is not None and self._open[0] == setup.server:
            return self._open[1]
        self.close()
        prepared, self._prepared = self._prepared, None
        server, self._stack = self._start(setup) if prepared is None else prepared.result()
        self._open = setup.server, server
        return server

    def prepare(self, setup: Setup) -> None:
        """Begin to start the server that `of` is asked for next, while the open one ends."""
        self._prepared = self._starter.submit(self._start, setup)

    def close(self) -> None:
        """End the open server, by force if need be."""
        self._open = None
        self._stack.close()

    def close_all(self) -> None:
        """End the prepared server, too."""
        self.close()
        with suppress(RuntimeError):
            if self._prepared is not None:
                self._prepared.result()[1].close()
        self._starter.shutdown()

    def _start(self, setup: Setup) -> tuple[ServerProcess, ExitStack]:
        """Return a server, and what ends it."""
        path = self._model.path.with_name(setup.checkpoint) if setup.checkpoint else self._model.path
        arguments = [str(path), "--load-format", "dummy", "--kv-cache-memory", str(KV_CACHE_BYTES)]
        with ExitStack() as stack:
            server = stack.enter_context(
                serving(*arguments, *setup.options, is_log_read=setup.is_log_read, program=setup.program)
            )
            return server, stack.pop_all()


def one_round(
    model: Model, names: Sequence[str], seconds: float, is_last: bool, say: Callable[[str], None]
) -> dict[str, Row | str]:
    """Measure all rows; what goes wrong is a sentence instead of a row, and the next row has a new server."""
    rows: dict[str, Row | str] = {}
    servers = Servers(model)
    order = sorted(names, key=lambda name: ATTACKS[name].setup.server)
    try:
        for name, following in zip_longest(order, order[1:]):
            say(name)
            rows[name] = row = one_row(servers, model.context, name, seconds, is_last, following)
            print(f"  {row}", file=sys.stderr)
            if is_last or isinstance(row, str):
                servers.close()
    finally:
        servers.close_all()
    return rows


def one_row(
    servers: Servers, context: int, name: str, seconds: float, is_last: bool, following: str | None = None
) -> Row | str:
    """Measure a row; in the last round look at the server's memory and end, while that of the `following` row starts.

    Return a sentence if something fails.
    """
    server: ServerProcess | None = None
    row: Row | None = None
    try:
        server = servers.of(ATTACKS[name].setup)
        row, growth = asyncio.run(measure(server, context, name, seconds))
        # Answers that their clients can come back to go on, and a server ends when they have.
        asyncio.run(until_idle(server.client(METRICS_S, ATTACKS[name].setup.good_key)))
        if not is_last:
            return row
        if following is not None:
            servers.prepare(ATTACKS[following].setup)
        return row._replace(**end(server, growth)._asdict())
    except FAILURES as error:
        notes = [*getattr(error, "__notes__", []), *([] if row is None else [str(row)])]
        return "; ".join([why(server, error), *notes])


def why(server: ServerProcess | None, error: Exception) -> str:
    """Say why a row has no figures: the server's end if it has ended, else the error."""
    code = None if server is None else server.exit_code(DEATH_S)
    if code is not None and code > 0:
        return f"the server ended with exit code {code}"
    if code is not None and code < 0:
        return f"the server was ended by signal {-code}"
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    return str(error) or type(error).__name__
