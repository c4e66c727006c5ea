"""The clients, a process of their own: crowds of them, opened and asked for their counts by the command."""

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
from app.server.run import raise_file_limit
from benchmarks.streams.control import obey, take_output
from benchmarks.streams.crowd import POKE_S, Crowd, Habit
from benchmarks.streams.pinning import pin


class Clients:
    """All crowds of this process by name, and what the command may ask."""

    def __init__(self, port: int, first_stream: int) -> None:
        self._port = port
        self._streams: Iterator[int] = itertools.count(first_stream)
        self._crowds: dict[str, Crowd] = {}

    async def open(self, crowd: str, num_streams: int, habit: dict[str, Any]) -> dict[str, Any]:
        """Connect so many more streams of a crowd."""
        if crowd not in self._crowds:
            self._crowds[crowd] = Crowd(Habit(**habit), self._port, self._streams)
        await self._crowds[crowd].open(num_streams)
        self._crowds[crowd].check()
        return {}

    async def begin(self) -> dict[str, Any]:
        """Begin new records."""
        for crowd in self._crowds.values():
            crowd.check()
            crowd.book.begin()
        return {"cpu_s": time.process_time()}

    async def read(self) -> dict[str, Any]:
        """Return the records since `begin` and begin new ones."""
        for crowd in self._crowds.values():
            crowd.check()
        records = {name: crowd.book.begin().to_json() for name, crowd in self._crowds.items()}
        return {"cpu_s": time.process_time(), "crowds": records}

    async def drain(self, crowd: str) -> dict[str, Any]:
        """Let a crowd read what there is; return the last token of each stream."""
        return {"tokens": await self._crowds[crowd].drain() if crowd in self._crowds else {}}

    async def finish(self, patience_s: float) -> dict[str, Any]:
        """Wait until all streams have ended; return what became of each: tokens, lost, doubled, wrong."""
        crowds = self._crowds.values()
        for crowd in crowds:
            crowd.flow()
        for crowd in crowds:
            await crowd.finish(patience_s)
        return {
            "streams": {
                tally.stream: [tally.number, tally.lost, tally.doubled, tally.wrong]
                for crowd in crowds for tally in crowd.tallies
            },
            "texts": sorted({tally.text for crowd in crowds for tally in crowd.tallies}),
            "returns": sum(crowd.num_returns for crowd in crowds),
        }  # fmt: skip

    async def poke(self) -> None:
        """Send what is due, again and again."""
        while True:
            await asyncio.sleep(POKE_S)
            for crowd in self._crowds.values():
                crowd.poke(monotonic())


async def serve(settings: dict[str, Any], answers: int) -> None:
    """Obey the command until its pipe ends."""
    clients = Clients(settings["port"], settings["first_stream"])
    async with asyncio.TaskGroup() as group:  # a mistake in either ends both, and so the process
        poking = group.create_task(clients.poke())
        await obey({name: getattr(clients, name) for name in ("open", "begin", "read", "drain", "finish")}, answers)
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
