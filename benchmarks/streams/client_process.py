"""A client process: it opens groups of clients and reports their counts, on requests of the command."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from app.runtime.clock import monotonic
from app.runtime.process_limits import raise_file_limit
from benchmarks.streams.client_group import POKE_S, ClientGroup, ClientSettings
from benchmarks.streams.control import serve_requests, take_output
from benchmarks.streams.pinning import pin


class Clients:
    """All groups of this process by name, and the requests of the command."""

    def __init__(self, port: int, first_stream: int) -> None:
        self._port = port
        self._streams: Iterator[int] = itertools.count(first_stream)
        self._groups: dict[str, ClientGroup] = {}

    async def open(self, group: str, num_streams: int, settings: dict[str, Any]) -> dict[str, Any]:
        """Connect `num_streams` more streams of a group."""
        if group not in self._groups:
            self._groups[group] = ClientGroup(ClientSettings(**settings), self._port, self._streams)
        await self._groups[group].open(num_streams)
        self._groups[group].raise_errors()
        return {}

    async def begin(self) -> dict[str, Any]:
        """Begin new records."""
        for group in self._groups.values():
            group.raise_errors()
            group.recorder.begin()
        return {"cpu_s": time.process_time()}

    async def read(self) -> dict[str, Any]:
        """Return the records since `begin` and begin new ones."""
        for group in self._groups.values():
            group.raise_errors()
        records = {name: group.recorder.begin().to_json() for name, group in self._groups.items()}
        return {"cpu_s": time.process_time(), "groups": records}

    async def drain(self, group: str) -> dict[str, Any]:
        """Let a group read all pending bytes; return the last token of each stream."""
        return {"tokens": await self._groups[group].drain() if group in self._groups else {}}

    async def finish(self, timeout_s: float) -> dict[str, Any]:
        """Wait until all streams have ended; return the counts of each: tokens, lost, doubled, wrong."""
        groups = self._groups.values()
        for group in groups:
            group.read_promptly()
        for group in groups:
            await group.finish(timeout_s)
        return {
            "streams": {
                check.stream: [check.number, check.lost, check.doubled, check.wrong]
                for group in groups for check in group.checks
            },
            "texts": sorted({check.text for group in groups for check in group.checks}),
            "returns": sum(group.num_returns for group in groups),
        }  # fmt: skip

    async def poke(self) -> None:
        """Send due frames periodically."""
        while True:
            await asyncio.sleep(POKE_S)
            for group in self._groups.values():
                group.poke(monotonic())


async def serve(settings: dict[str, Any], answers: int) -> None:
    """Serve the command's requests until its pipe ends."""
    clients = Clients(settings["port"], settings["first_stream"])
    async with asyncio.TaskGroup() as tasks:  # an error in either ends both, and so the process
        poking = tasks.create_task(clients.poke())
        await serve_requests(
            {name: getattr(clients, name) for name in ("open", "begin", "read", "drain", "finish")}, answers
        )
        poking.cancel()


def main() -> None:
    """Run as a child of the benchmark `streams`."""
    answers = take_output()
    settings = json.loads(sys.argv[1])
    pin(settings["cores"])
    raise_file_limit()
    uvloop.run(serve(settings, answers))


if __name__ == "__main__":
    main()
    os._exit(0)
