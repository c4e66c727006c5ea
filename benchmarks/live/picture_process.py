"""The process of a server that shows pictures and does nothing else: what each of them takes, with nothing beside.

The pictures are those of an engine that decodes 32 sequences of `guide`; making them is counted, too. They can be
replaced by those of a pool of another size.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import uvloop

from app.contract.engine_picture import EnginePicture, Watch
from app.contract.engine_status import EngineStats, ModelInfo, StepReport
from app.contract.requests import EngineCommand
from app.runtime.clock import monotonic
from benchmarks.live import engine_cells
from benchmarks.live.counted_view import CountedView
from benchmarks.live.engine_cells import Cell
from benchmarks.streams.control import serve_requests, take_output
from benchmarks.streams.scripted_engine import ScriptedEngine
from benchmarks.streams.served import serve_quire

CELL = engine_cells.CELLS["guide"]
STALL_S = 600.0


class PictureEngine(ScriptedEngine):
    """An engine that shows what it is told to; the first of its `pictures` to whoever begins to watch."""

    def __init__(self, model_info: ModelInfo) -> None:
        super().__init__(model_info)
        self.pictures: Sequence[EnginePicture] = ()
        self.has_started = asyncio.Event()

    def post(self, command: EngineCommand) -> None:
        if isinstance(command, Watch):
            self.show(self.pictures[0] if command.on else None)
        else:
            super().post(command)

    def start(self, deliver: Callable[[StepReport], None]) -> None:
        super().start(deliver)
        self.has_started.set()

    def show(self, picture: EnginePicture | None) -> None:
        """Report a step of nothing, and perhaps a picture. Any thread."""
        assert self._deliver is not None
        self._deliver(StepReport((), EngineStats(0), picture=picture))


class Pictures:
    """The requests of the benchmark: the server starts, and shows pictures to whoever watches."""

    def __init__(self) -> None:
        self._engine: PictureEngine | None = None

    async def start(self, num_pictures: int) -> dict[str, Any]:
        """Make pictures, and serve; return the port, and the engine thread's milliseconds for each with its records."""
        pictures, engine_s = make_pictures(CELL, num_pictures)
        served = await serve_quire(PictureEngine, stall_timeout_s=STALL_S)
        assert isinstance(served.source, PictureEngine)
        self._engine = served.source
        self._engine.pictures = pictures
        await self._engine.has_started.wait()
        return {"port": served.port, "engine_ms": 1000 * engine_s / len(pictures)}

    async def replace(self, num_blocks: int, num_pictures: int) -> dict[str, Any]:
        """Make pictures of a nearly full pool of so many blocks, in place of those before; nobody may watch."""
        assert self._engine is not None
        self._engine.pictures, _ = make_pictures(engine_cells.pool_cell(num_blocks), num_pictures)
        return {}

    async def show(self, num_steps: int, has_pictures: bool, interval_s: float) -> dict[str, Any]:
        """Report steps, each with a picture or none; return the milliseconds of the event loop for each."""
        assert self._engine is not None
        pictures, began = cycle(self._engine.pictures), time.thread_time()
        for _ in range(num_steps):
            self._engine.show(next(pictures) if has_pictures else None)
            await asyncio.sleep(interval_s)
        return {"loop_ms": 1000 * (time.thread_time() - began) / num_steps}


def make_pictures(cell: Cell, num_pictures: int) -> tuple[list[EnginePicture], float]:
    """Return pictures of an engine that decodes, and the processor seconds that they have taken."""
    engine = cell.open()
    engine_cells.start(engine, cell, 0)
    engine.view = view = CountedView(engine.scheduler)
    pictures: list[EnginePicture] = []
    while len(pictures) < num_pictures:
        if (picture := engine.turn((), monotonic()).picture) is not None:
            assert len(picture.groups) == cell.batch, "an answer has ended"
            pictures.append(picture)
    engine.turn([Watch(False)], monotonic())
    return pictures, sum(view.steps_s) + sum(view.ends_s)


if __name__ == "__main__":
    pictures = Pictures()
    uvloop.run(
        serve_requests({"start": pictures.start, "replace": pictures.replace, "show": pictures.show}, take_output())
    )
