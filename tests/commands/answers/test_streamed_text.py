"""Asynchronous answers as ordinary iterators, and Ctrl-C at any moment."""

import asyncio
import signal

import pytest

from app.commands.answers.streamed_text import iterate


async def numbers(log: list[str]):
    """Yield numbers without end; log the end."""
    try:
        for number in range(10**9):
            await asyncio.sleep(0)
            yield str(number)
    finally:
        log.append("closed")


def test_an_iteration_that_is_closed_closes_the_generator():
    log: list[str] = []
    with asyncio.Runner() as runner:
        deltas = iterate(runner, numbers(log))
        assert [next(deltas), next(deltas)] == ["0", "1"]
        deltas.close()
        assert log == ["closed"]


def test_an_interrupt_before_the_runner_waits_for_its_task_closes_the_generator(monkeypatch):
    """The task was begun, and nobody waits for it: it must not run beside the close."""
    log: list[str] = []
    with asyncio.Runner() as runner:
        deltas = iterate(runner, numbers(log))
        assert next(deltas) == "0"
        found, is_first = signal.getsignal, [True]

        def interrupted(number: int):
            if is_first.pop() if is_first else False:
                raise KeyboardInterrupt
            return found(number)

        monkeypatch.setattr("asyncio.runners.signal.getsignal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(deltas)
        assert log == ["closed"]
        assert next(iterate(runner, numbers(log))) == "0", "the runner can be used further"


def test_an_interrupt_beside_another_cancellation_is_an_interrupt():
    """Such as that of a time limit at the same moment."""

    async def cancelled_twice():
        yield "0"
        signal.raise_signal(signal.SIGINT)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with asyncio.Runner() as runner:
        deltas = iterate(runner, cancelled_twice())
        assert next(deltas) == "0"
        with pytest.raises(KeyboardInterrupt):
            next(deltas)
