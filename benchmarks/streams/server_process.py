"""The process of the server under measurement: it serves, measures itself, and executes requests of the command."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import sys
import threading
from typing import Any

import uvloop

from app.runtime.clock import monotonic
from app.runtime.gc_tuning import paused_gc, trim_heap
from app.runtime.process_limits import raise_file_limit
from benchmarks.streams.cells import BARE, QUIRE
from benchmarks.streams.control import Rejected, serve_requests, take_output
from benchmarks.streams.gauges import Gauges
from benchmarks.streams.pinning import pin
from benchmarks.streams.scripted_engine import ScriptedEngine
from benchmarks.streams.served import Served, serve_bare, serve_quire

LOAD_S = 60.0
POLL_S = 0.01


class ServerControl:
    """The requests that the command may send to the server's process."""

    def __init__(self, served: Served, gauges: Gauges) -> None:
        self._served = served
        self._gauges = gauges

    async def ready(self) -> dict[str, Any]:
        """Return the port when the model is loaded."""
        await self._served.wait_until_ready(LOAD_S)
        return {"port": self._served.port}

    async def gauges(self) -> dict[str, Any]:
        """Return the gauges, at a moment at which no token is in flight."""
        if self._served.source is not None:
            await asyncio.sleep(max(self._served.source.quiet_time() - monotonic(), 0.0))
        return self._gauges.read()

    async def watch(self, is_watching: bool) -> dict[str, Any]:
        """Start or stop measuring the loop's lag; return the lags so far."""
        self._gauges.watch(is_watching)
        return {"lags": self._gauges.lags().to_json()}

    async def pace(self, rate: float | None) -> dict[str, Any]:
        """Generate `rate` tokens a second for each stream; None is as many as the server can send."""
        if self._served.source is not None:
            self._served.source.pace(math.inf if rate is None else rate)
        return {}

    async def wait_open(self, num_streams: int, timeout_s: float) -> dict[str, Any]:
        """Wait until exactly `num_streams` streams are open."""
        source = self._served.source
        deadline = monotonic() + timeout_s
        while source is not None and source.num_open != num_streams:
            if monotonic() > deadline:
                raise Rejected(f"{source.num_open} streams are open instead of {num_streams}")
            await asyncio.sleep(POLL_S)
        return {}

    async def tokens(self) -> dict[str, Any]:
        """Return the number of generated tokens of each stream."""
        return {"tokens": self._served.source.tokens() if self._served.source is not None else {}}

    async def trim(self) -> dict[str, Any]:
        """Give freed memory back to the system, so that the resident memory is what is in use; return what is left."""
        gc.collect()
        trim_heap()
        return {
            "tasks": len(asyncio.all_tasks()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "objects": len(gc.get_objects()),
        }

    async def finish(self) -> dict[str, Any]:
        """End all open streams."""
        if self._served.source is not None:
            self._served.source.finish()
        return {}


async def serve(settings: dict[str, Any], answers: int) -> None:
    """Serve as in the settings until the command's pipe ends."""
    if settings["serve"] == BARE:
        served = await serve_bare()
    else:
        scripted = ScriptedEngine if settings["serve"] == QUIRE else None
        served = await serve_quire(scripted, stall_timeout_s=settings["stall_timeout_s"])
    control = ServerControl(served, Gauges(served.source_cpu_s))
    names = ("ready", "gauges", "watch", "pace", "wait_open", "tokens", "trim", "finish")
    await serve_requests({name: getattr(control, name) for name in names}, answers)


def main() -> None:
    """Run as a child of the benchmark `streams`."""
    answers = take_output()
    settings = json.loads(sys.argv[1])
    pin(settings["cores"])
    raise_file_limit()
    with paused_gc():
        uvloop.run(serve(settings, answers))


if __name__ == "__main__":
    main()
