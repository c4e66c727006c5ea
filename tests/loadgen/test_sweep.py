"""Sweeps: a warm-up that does not count, a run for each rate, and servers that reject everything."""

import asyncio
import io
import math
from typing import Any

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen import sweep as sweeps
from app.loadgen.files import Result
from app.loadgen.load import Load
from app.loadgen.load_client import Client
from app.loadgen.sweep import CLEAR, progress, progress_line, sweep
from app.loadgen.target import find_target
from tests.api.serving import until
from tests.loadgen.fakes import HANG_S, FakeServer, chunked, make_answer, make_run, rejection, serving, stream, text


async def measure(
    server: FakeServer, *rates: float, results: list[Result] | None = None, **fields: Any
) -> list[Result]:
    done: list[Result] = [] if results is None else results
    load = Load(**({"model": "m", "num_requests": 5, "input_len": 2, "warm_up": 0} | fields))
    target = find_target(server.url)
    await sweep(target, load, Client(target, HANG_S), rates, done.append)
    return done


async def test_each_rate_is_a_run_and_the_warm_up_does_not_count():
    async with serving(stream()) as server:
        results = await measure(server, 500.0, math.inf, warm_up=3)
    assert len(server.bodies) == 3 + 5 + 5
    assert [(result.figures.rate, result.figures.completed) for result in results] == [(500.0, 5), (math.inf, 5)]


@pytest.mark.parametrize("warm_up", [0, 2])
async def test_a_server_that_rejects_every_request_is_a_configuration_error(warm_up):
    async with serving(rejection("404 Not Found", "model_not_found")) as server:
        with pytest.raises(ConfigurationError, match=r"404 model_not_found, Too many requests"):
            await measure(server, math.inf, warm_up=warm_up)
    assert len(server.bodies) == (warm_up or 5)


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
async def test_an_overloaded_server_cannot_be_measured_now(status):
    async with serving(rejection(status)) as server:
        with pytest.raises(CannotStart, match="overloaded"):
            await measure(server, math.inf, warm_up=1)


async def test_a_rejected_rate_is_reported_before_the_error():
    results: list[Result] = []
    async with serving(lambda number: stream() if number < 5 else rejection()) as server:
        with pytest.raises(CannotStart):
            await measure(server, math.inf, math.inf, math.inf, results=results)
    assert [(result.figures.completed, result.figures.failed) for result in results] == [(5, 0), (0, 5)]


async def test_some_failures_are_not_an_error():
    async with serving(lambda number: rejection() if number else stream()) as server:
        (result,) = await measure(server, math.inf)
    assert result.figures.errors == {"503 overloaded": 4}


async def test_cancelling_every_request_is_not_an_error():
    async with serving(stream(9)) as server:
        (result,) = await measure(server, math.inf, cancel_share=1.0, output_len=5)
    assert (result.figures.cancelled, result.figures.completed) == (5, 0)


async def test_a_cancelled_run_reports_its_answers():
    results: list[Result] = []
    unfinished = chunked(text(), is_complete=False)
    async with serving(lambda number: rejection() if number == 0 else unfinished) as server:
        server.hold()
        task = asyncio.create_task(measure(server, math.inf, results=results))
        await until(lambda: server.num_open == 4 and server.lost == [0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [answer.status for answer in results[0].answers].count("open") == 4
    assert results[0].figures.failed == 1


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line_counts_requests_by_status():
    answers = [*[make_answer()] * 3, make_answer(status="open"), make_answer(status="failed")]
    found = progress_line("rate 4", make_run(*answers, num_open=1), 1200)
    assert found.startswith("rate 4: 5 of 1,200 sent, 1 open, 3 completed, 1 failed; ")
    assert progress_line("rate inf", make_run(), None).startswith("rate inf: 0 sent, 0 open; ")


async def test_on_a_terminal_progress_is_one_line_that_is_rewritten_and_cleared(monkeypatch):
    monkeypatch.setattr(sweeps, "PROGRESS_INTERVAL_S", 0.001)
    monkeypatch.setenv("COLUMNS", "21")
    terminal = FakeTerminal()
    async with progress(terminal, "rate 4", make_run(make_answer()), 2):
        await until(lambda: terminal.getvalue().count(CLEAR) >= 3)
    lines = terminal.getvalue().split(CLEAR)
    assert lines[0] == lines[-1] == ""
    assert set(lines[1:-1]) == {"rate 4: 1 of 2 sent,"}, "no wider than the terminal"


async def test_without_a_terminal_progress_is_one_line_per_run():
    file = io.StringIO()
    async with progress(file, "rate 4", make_run(make_answer()), 2):
        await asyncio.sleep(0)
    assert file.getvalue() == "rate 4\n"
