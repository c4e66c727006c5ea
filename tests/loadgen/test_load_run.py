"""Sending a load: every request once and in order, with a bounded number of open ones, and the lateness of each."""

import asyncio
import gc
import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from app.loadgen import load_run
from app.loadgen.answer import Answer
from app.loadgen.figures import peak
from app.loadgen.load import Load, Request
from app.loadgen.load_client import Client
from app.loadgen.load_run import Run
from app.loadgen.target import find_target
from tests.api.serving import until
from tests.fakes import turn_loop
from tests.loadgen.fakes import HANG_S, FakeServer, rejection, serving, stream


async def send(server: FakeServer, rate: float, max_concurrency: int | None = None, **fields: Any) -> Run:
    load = Load(**({"model": "m", "num_requests": 8, "input_len": 2, "output_len": 3} | fields))
    target = find_target(server.url)
    run = Run(Client(target, HANG_S), max_concurrency, load.duration_s)
    await run.send(load.requests(target, rate, 0))
    return run


class SlowClient:
    """Completes an answer when `hold` returns; `sent` are the messages."""

    def __init__(self, hold: Callable[[], Any] | None = None) -> None:
        self.sent: list[bytes] = []
        self._hold = hold

    async def send(self, request: Request, answer: Answer) -> None:
        self.sent.append(request.message)
        if self._hold:
            await self._hold()
        answer.status, answer.ended = "completed", answer.sent + 1.0


def endless_requests(due: float = 0.0) -> Iterator[Request]:
    return (Request(due, b"%d" % number) for number in count())


async def test_every_request_is_sent_once_in_order():
    async with serving(stream()) as server:
        run = await send(server, 400.0)
    assert len(server.bodies) == len({body["prompt"] for body in server.bodies}) == 8
    assert [answer.status for answer in run.answers] == ["completed"] * 8
    assert [answer.due for answer in run.answers] == sorted(answer.due for answer in run.answers)
    assert all(answer.sent >= answer.due == answer.ready for answer in run.answers)
    assert run.num_open == 0
    assert run.ended == max(answer.ended for answer in run.answers)
    assert run.cpu_s > 0


async def test_requests_at_an_infinite_rate_are_open_together():
    async with serving(stream(), together=8) as server:
        run = await send(server, math.inf)
    assert server.most_open == peak(run.answers) == 8


async def test_failures_do_not_stop_other_requests():
    async with serving(lambda number: rejection() if number % 2 else stream()) as server:
        run = await send(server, math.inf)
    assert sorted(answer.status for answer in run.answers) == ["completed"] * 4 + ["failed"] * 4


async def test_open_requests_are_bounded_by_max_concurrency():
    async with serving(stream(), together=3) as server:
        run = await send(server, math.inf, max_concurrency=3)
    assert len(server.bodies) == 8
    assert server.most_open == peak(run.answers) == 3
    assert [answer.ready > answer.due for answer in run.answers] == [False] * 3 + [True] * 5


async def test_waiting_for_max_concurrency_does_not_count_as_late():
    released = asyncio.Event()
    run = Run(SlowClient(released.wait), 1)  # type: ignore[arg-type]
    task = asyncio.create_task(run.send([Request(0.0, b"0"), Request(0.0, b"1")]))
    await until(lambda: run.num_open == 1)
    await turn_loop()
    assert len(run.answers) == 1
    freed = time.perf_counter()
    released.set()
    await asyncio.wait_for(task, HANG_S)
    held = run.answers[1]
    assert held.due == run.began < freed <= held.ready <= held.sent
    assert held.late == held.sent - held.ready


async def test_a_blocked_loop_counts_as_late():
    run = Run(SlowClient())  # type: ignore[arg-type]
    task = asyncio.create_task(run.send([Request(0.01, b"0")]))
    await asyncio.sleep(0)
    began = run.began
    while asyncio.get_running_loop().time() < began + 0.05:
        pass
    await task
    assert run.answers[0].late >= 0.03


async def test_an_endless_load_ends_with_its_duration(monkeypatch: pytest.MonkeyPatch):
    """By a clock that advances by 0.01 s whenever it is read."""
    readings = count()
    clock = SimpleNamespace(perf_counter=lambda: next(readings) / 100, process_time=time.process_time)
    monkeypatch.setattr(load_run, "time", clock)
    client = SlowClient(turn_loop)
    run = Run(client, 2, 0.2)  # type: ignore[arg-type]
    await asyncio.wait_for(run.send(endless_requests()), HANG_S)
    assert len(run.answers) > 2
    assert client.sent == [b"%d" % number for number in range(len(run.answers))]
    assert all(answer.ready - run.began <= 0.2 for answer in run.answers)


async def test_cancelling_a_run_closes_all_connections():
    async with serving(stream().removesuffix(b"0\r\n\r\n")) as server:
        server.hold()
        task = asyncio.create_task(send(server, math.inf, num_requests=4, input_len=1))
        await until(lambda: server.num_open == 4)
        task.cancel()
        await until(lambda: len(server.lost) == 4)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_run_restores_the_garbage_collector(monkeypatch):
    calls: list[str] = []
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    await Run(SlowClient()).send([])  # type: ignore[arg-type]
    assert calls == ["freeze", "unfreeze"]
    assert gc.isenabled()
