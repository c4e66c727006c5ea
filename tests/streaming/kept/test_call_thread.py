"""A thread for repeated calls: results, exceptions, limits, and calls that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from app.contract.errors import Draining
from app.streaming.kept.call_thread import CallThread
from tests.api.serving import until

LONG_S = 60.0


class LargeArgument:
    """An argument that must be released with its call."""


@pytest.fixture
def thread() -> Iterator[CallThread]:
    thread = CallThread("test")
    yield thread
    thread.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a call can wait for; it is set at the end, so that no thread is left."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_all_calls_run_on_one_other_thread(thread: CallThread):
    first, second = [await thread.run(LONG_S, threading.get_ident) for _ in range(2)]
    assert first == second != threading.get_ident()


async def test_exceptions_are_raised_to_the_caller_and_further_calls_are_made(thread: CallThread):
    with pytest.raises(ValueError, match="invalid literal"):
        await thread.run(LONG_S, int, "x")
    assert await thread.run(LONG_S, int, "5") == 5


async def test_the_arguments_of_a_call_are_released_with_it(thread: CallThread):
    """Without a collection of cycles."""

    def fail(argument: LargeArgument) -> None:
        raise ValueError

    gc.disable()
    try:
        argument = LargeArgument()
        released = weakref.ref(argument)
        with pytest.raises(ValueError):
            await thread.run(LONG_S, fail, argument)
        del argument
        await thread.run(LONG_S, int)
        assert released() is None
    finally:
        gc.enable()


async def test_a_call_beyond_its_limit_raises_and_the_next_one_waits_for_it(thread: CallThread, gate: threading.Event):
    ended: list[str] = []

    def wait() -> None:
        gate.wait(LONG_S)
        ended.append("late")

    with pytest.raises(TimeoutError):
        await thread.run(0.01, wait)
    gate.set()
    await thread.run(LONG_S, ended.append, "next")
    assert ended == ["late", "next"]


async def test_a_call_that_waits_beyond_its_limit_is_dropped(thread: CallThread, gate: threading.Event):
    made: list[str] = []
    for call in (lambda: gate.wait(LONG_S), lambda: made.append("dropped")):
        with pytest.raises(TimeoutError):
            await thread.run(0.01, call)
    gate.set()
    await thread.run(LONG_S, made.append, "made")
    assert made == ["made"]


async def test_a_short_limit_after_a_long_one_is_kept(thread: CallThread, gate: threading.Event):
    await thread.run(LONG_S, int)
    with pytest.raises(TimeoutError):
        await thread.run(0.01, gate.wait, LONG_S)


async def test_the_limit_of_an_earlier_call_cuts_no_later_one(thread: CallThread, gate: threading.Event):
    running = asyncio.create_task(thread.run(LONG_S, gate.wait, LONG_S))
    await asyncio.sleep(0)
    thread._check(asyncio.get_running_loop())
    gate.set()
    assert await running is True


async def test_a_cancelled_call_takes_no_limit_from_the_next_one(thread: CallThread, gate: threading.Event):
    has_begun = threading.Event()

    def wait() -> None:
        has_begun.set()
        gate.wait(LONG_S)

    cancelled = asyncio.create_task(thread.run(LONG_S, wait))
    await until(has_begun.is_set)
    cancelled.cancel()
    with pytest.raises(TimeoutError):
        await thread.run(0.01, int)
    assert cancelled.cancelled()


async def test_a_closed_thread_takes_no_calls_and_ends(gate: threading.Event):
    thread = CallThread("closed")
    running = asyncio.create_task(thread.run(LONG_S, gate.wait, LONG_S))
    await asyncio.sleep(0)
    (own,) = [each for each in threading.enumerate() if each.name == "quire-closed"]
    thread.close()
    with pytest.raises(Draining):
        await thread.run(LONG_S, int)
    gate.set()
    assert await running is True
    own.join(LONG_S)
    assert not own.is_alive()


def test_the_end_of_its_loop_does_not_end_it(thread: CallThread, gate: threading.Event):
    """A result that comes when the loop is closed goes nowhere."""

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await thread.run(0.01, gate.wait, LONG_S)

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(thread.run(LONG_S, int)) == 0
