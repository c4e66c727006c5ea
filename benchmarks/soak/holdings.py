"""What a server process holds: memory, descriptors, threads, tasks, processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from app.runtime.clock import monotonic
from benchmarks.isolation.memory import resident_of_tree, tree
from benchmarks.resuming.mortal_server import MortalServer

LOOK_EVERY_S = 1.0


class Holdings(NamedTuple):
    """What the server holds at one moment; `resident` is in bytes, with its children's."""

    seconds: float
    resident: int
    descriptors: int
    threads: int
    tasks: int
    processes: int


async def look(server: MortalServer) -> Holdings:
    """Look at a server.

    Raises:
        OSError, TimeoutError: it does not answer.
    """
    tasks = await server.metric("quire_event_loop_tasks")
    pid = server.server.pid
    folder = Path(f"/proc/{pid}")
    return Holdings(
        monotonic(),
        resident_of_tree(pid),
        _num_in(folder / "fd"),
        _num_in(folder / "task"),
        int(tasks),
        len([*tree(pid)]),
    )


async def watch(server: MortalServer, found: list[Holdings]) -> None:
    """Look once a second, for ever; nothing is found while the server is down."""
    while True:
        with suppress(OSError, TimeoutError):
            found.append(await look(server))
        await asyncio.sleep(LOOK_EVERY_S)


def slope(found: Sequence[Holdings]) -> float:
    """Return by how many bytes the memory grows in a second: the line of least squares."""
    if len(found) < 3:
        return 0.0
    start = found[0].seconds
    times, sizes = [each.seconds - start for each in found], [each.resident for each in found]
    mean_time, mean_size = sum(times) / len(times), sum(sizes) / len(sizes)
    above = sum((time - mean_time) * (size - mean_size) for time, size in zip(times, sizes, strict=True))
    return above / sum((time - mean_time) ** 2 for time in times)


def _num_in(folder: Path) -> int:
    return len([*folder.iterdir()])
