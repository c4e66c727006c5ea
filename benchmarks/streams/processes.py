"""The server process and the client processes of one cell."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks.side import Program, with_checkout
from benchmarks.streams.cells import MAX_PER_SOCKET, MODEL, Part
from benchmarks.streams.client_group import PROMPT, ClientSettings
from benchmarks.streams.pinning import Cores
from benchmarks.streams.script import MAX_STREAMS

BATCH = 3 * MAX_PER_SOCKET  # streams that are opened at once: fewer than may wait for a thread
ANSWER_S = 60.0
OPEN_S, FINISH_S = 30.0, 50.0  # less than ANSWER_S
MODEL_TOKENS = 1500
MESSAGES = [{"role": "user", "content": "Count up, please."}]
SCRIPTED_BODY = {"messages": MESSAGES}
MODEL_BODY = {"messages": MESSAGES, "temperature": 0, "ignore_eos": True, "max_tokens": MODEL_TOKENS}


class Processes:
    """A server process and client processes. Use as a context manager, which ends them.

    Raises:
        SideFailed: from every method, if a process has ended, reports an error or takes too long.
    """

    def __init__(self, serve: str, cores: Cores, folder: Path, *, stall_timeout_s: float) -> None:
        self._serve = serve
        self._cores = cores
        self._folder = folder
        self._stall_timeout_s = stall_timeout_s
        self._stack = ExitStack()
        self.num_open = 0

    def __enter__(self) -> Self:
        try:
            settings = {"serve": self._serve, "cores": self._cores.server, "stall_timeout_s": self._stall_timeout_s}
            self.server = self._child("server_process", settings)
            self.port = self.server.ask("ready")["port"]
            num_clients = len(self._cores.clients)
            self.clients = [
                self._child(
                    "client_process",
                    {"port": self.port, "cores": cores, "first_stream": number * (MAX_STREAMS // num_clients)},
                    f"-{number}",
                )
                for number, cores in enumerate(self._cores.clients)
            ]
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def open(
        self,
        group: str,
        part: Part,
        mode: str = PROMPT,
        speed: int = 1,
        *,
        wait: bool = True,
        source: str = "127.0.0.1",
    ) -> None:
        """Open streams in batches; with `wait` each batch is in the engine before the next one is opened."""
        is_scripted = self._serve != MODEL
        body = SCRIPTED_BODY if is_scripted else MODEL_BODY
        settings = ClientSettings(part.kind, mode, part.per_socket, speed, is_scripted, body, source)
        for begin in range(0, part.num_streams, BATCH):
            size = min(BATCH, part.num_streams - begin)
            self.ask_clients("open", self.shares(size, part.per_socket), group=group, settings=settings._asdict())
            self.num_open += size
            if wait and is_scripted:
                self.server.ask("wait_open", num_streams=self.num_open, timeout_s=OPEN_S)

    def ask_clients(self, do: str, shares: list[int] | None = None, **request: object) -> list[dict[str, Any]]:
        """Send a request to all client processes at once, with each one's share of streams, if given."""
        for number, client in enumerate(self.clients):
            client.send(do, **request, **({} if shares is None else {"num_streams": shares[number]}))
        return [client.receive() for client in self.clients]

    def gauges(self) -> dict[str, Any]:
        """Return the server's gauges."""
        return self.server.ask("gauges")

    def tokens(self) -> dict[str, int]:
        """Return the number of generated tokens of each stream."""
        found: dict[str, int] = self.server.ask("tokens")["tokens"]
        return found

    def pace(self, rate: float | None) -> None:
        """Set the tokens per second of each stream."""
        self.server.ask("pace", rate=rate)

    def finish(self) -> tuple[dict[str, int], dict[str, list[int]], list[dict[str, Any]]]:
        """End all streams; return generated and received tokens (see `figures.faults`) and the clients' answers."""
        self.server.ask("pace", rate=0)
        self.server.ask("finish")
        answers = self.ask_clients("finish", timeout_s=FINISH_S)
        self.num_open = 0
        streams = {stream: found for answer in answers for stream, found in answer["streams"].items()}
        return self.tokens(), streams, answers

    def shares(self, num_streams: int, per_socket: int) -> list[int]:
        """Divide streams among the client processes, without splitting a socket."""
        num_sockets, num_clients = -(-num_streams // per_socket), len(self.clients)
        ends = [num_sockets * (number + 1) // num_clients * per_socket for number in range(num_clients)]
        return [min(end, num_streams) - min(begin, num_streams) for begin, end in zip([0, *ends], ends, strict=False)]

    def _child(self, module: str, settings: dict[str, object], suffix: str = "") -> Program:
        command = [sys.executable, "-m", f"benchmarks.streams.{module}", json.dumps(settings)]
        log, name = self._folder / f"{module}{suffix}.log", module.removesuffix("_process")
        return self._stack.enter_context(Program(command, log, with_checkout(), name, ANSWER_S))
