"""The loops of the benchmark have their load, and end with the engine."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from app import LLM
from benchmarks import busy_loop
from benchmarks.busy_loop import SWITCH_INTERVAL_S, Stepping, Ticks, busy, describe


@pytest.fixture(autouse=True)
def _as_in_a_server():
    """Set the switch interval of a server; at Python's default the engine seldom gets the interpreter lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(before)


def after(checks: int) -> Callable[[], bool]:
    """A condition that is true after `checks` calls."""
    left = iter(range(checks))
    return lambda: next(left, None) is None


@pytest.mark.parametrize(("share", "sleeps"), [(0.1, 0.009), (1.0, 0)])
async def test_a_busy_loop_sleeps_for_the_rest_of_its_period(share, sleeps, monkeypatch):
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(busy_loop.asyncio, "sleep", sleep)
    await busy(share, after(3))
    assert slept == [pytest.approx(sleeps)] * 3


def test_ticks_are_never_early():
    ticks = Ticks()
    asyncio.run(ticks.run(after(4)))
    assert len(ticks.delays) == 5  # at least one, even if the engine is done at once
    assert min(ticks.delays) >= 0


def test_every_step_is_timed_and_all_sequences_are_aborted():
    engine = LLM("guide", max_model_len=512, num_kv_blocks=80).engine
    with Stepping(engine, 2, "x") as stepping:
        assert engine.stats().queues.num_running == 2
        assert len(stepping.beside(None, 4)) == len(stepping.beside(Ticks().run, 4)) == 4
    assert not engine.has_ready_work


def test_each_loop_is_measured_with_new_sequences(monkeypatch):
    monkeypatch.setattr(busy_loop, "NUM_SETTLE", 1)
    monkeypatch.setattr(busy_loop, "NUM_STEPS", 30)
    began = []
    monkeypatch.setattr(busy_loop, "Stepping", lambda *parts: began.append(parts[2]) or Stepping(*parts))
    engine = LLM("guide", max_model_len=512, num_kv_blocks=80).engine
    medians = busy_loop.measure(engine, 2, rounds=2)
    assert set(medians) == set(busy_loop.SHARES) and all(len(times) == 2 for times in medians.values())
    assert len(set(began)) == len(began) == 2 * (len(busy_loop.SHARES) + 1)
    assert not engine.has_ready_work


def test_times_are_described_in_milliseconds():
    assert describe([0.003, 0.001, 0.002]) == "p50 2.00 ms, p95 2.00 ms, max 3.00 ms"
