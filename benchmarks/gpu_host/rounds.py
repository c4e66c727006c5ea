"""Rounds of one cell: the same requests offline, then through a server with its clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.commands.measuring.workload import Workload
from app.llm import LLM
from benchmarks.gpu.engines import engine, run_load
from benchmarks.gpu.loads import TEMPERATURE, turned
from benchmarks.gpu.models import MAX_MODEL_LEN, write_model
from benchmarks.gpu.serving import MAX_QUEUE, ask
from benchmarks.gpu_host.cells import Cell
from benchmarks.gpu_host.device import PacedDevice
from benchmarks.gpu_host.paced import paced_engines
from benchmarks.gpu_host.thread_times import ThreadTimes
from benchmarks.server_process import ServerProcess, listening

WARM_REQUESTS, WARM_NEW = 64, 24


class Offline(NamedTuple):
    """A load without a server: its seconds, those of the device's steps among them, and their number."""

    seconds: float
    device_s: float
    num_steps: int


class Served(NamedTuple):
    """A load through a server; `parts` are the events that clients read, at the times that ITL and TTFT tell."""

    seconds: float
    num_steps: int
    threads: ThreadTimes
    clients_s: float
    parts: int
    itl_p50_ms: float
    itl_p99_ms: float
    ttft_p50_ms: float


class Round(NamedTuple):
    """Both sides of a round."""

    num_tokens: int
    offline: Offline
    served: Served

    @property
    def share(self) -> float:
        """The share of the offline throughput that is left, per cent."""
        return 100 * self.offline.seconds / self.served.seconds

    @property
    def host_share(self) -> float:
        """CPU time of loop and engine while the load is served, per cent of the device's time for it."""
        return 100 * (self.served.threads.loop + self.served.threads.engine) / self.offline.device_s


def measure(cell: Cell, rounds: int, folder: Path, server_options: Sequence[str] = ()) -> Iterator[Round]:
    """Yield one round after the other, each with other prompts."""
    model, load = write_model(cell.model, folder), cell.load()
    options = ["--load-format", "dummy", "--device", "cuda", "--max-model-len", str(MAX_MODEL_LEN)]
    options += ["--max-queue", str(MAX_QUEUE), *server_options]
    with (
        paced_engines() as devices,
        engine(model, device="cuda", max_model_len=MAX_MODEL_LEN) as llm,
        listening(str(model), *options, log=folder / "server.log", program="benchmarks.gpu_host.paced") as server,
    ):
        asyncio.run(server.wait_until_ready())
        warm = turned(load, rounds).prompts[:WARM_REQUESTS]
        ask(server, Workload(warm, (WARM_NEW,) * len(warm)), folder)
        for turn in range(rounds):
            chosen = turned(load, turn)
            offline, served = measure_offline(llm, devices[0], chosen), measure_served(server, chosen, folder)
            yield Round(sum(load.num_new_tokens), offline, served)


def measure_offline(llm: LLM, device: PacedDevice, load: Workload) -> Offline:
    """Run a load in this process."""
    busy_s, num_steps = device.busy_s, device.num_steps
    seconds = run_load(llm, load, TEMPERATURE)
    return Offline(seconds, device.busy_s - busy_s, device.num_steps - num_steps)


def measure_served(server: ServerProcess, load: Workload, folder: Path) -> Served:
    """Run a load through the server, with the clients in a third process."""
    before, first = ThreadTimes.of(server.pid), asyncio.run(_num_steps(server))
    found = ask(server, load, folder)
    threads = ThreadTimes.of(server.pid).since(before)
    return Served(
        found["seconds"],
        asyncio.run(_num_steps(server)) - first,
        threads,
        found["cpu_s"],
        found["parts"],
        found["itl_ms"]["p50"],
        found["itl_ms"]["p99"],
        found["ttft_ms"]["p50"],
    )


async def _num_steps(server: ServerProcess) -> int:
    answer = await server.client().get("/metrics")
    found = re.search(rb"^quire_step_seconds_count\S* (\d+)", answer.content, re.MULTILINE)
    assert found is not None, "the server counts its steps"
    return int(found[1])
