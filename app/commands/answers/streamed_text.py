"""A streamed answer as an ordinary generator of text deltas, from a local model or from a server.

Closing the generator early (`contextlib.closing`) stops the generation of the answer. At its end it returns what is
known about the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.contract.events import ChoiceEnd

Messages = Sequence[dict[str, str]]
Result = TypeVar("Result")


@dataclass(slots=True)
class AnswerEnd:
    """How an answer ended, and its tokens; a server may leave each of them out, and have other reasons."""

    choice: ChoiceEnd | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


TextStream = Generator[str, None, AnswerEnd]


def read_stream(stream: TextStream, take: Callable[[str], object]) -> AnswerEnd:
    """Call `take` with each piece of an answer, close the stream, and return its end. Raises what either raises."""
    with contextlib.closing(stream):
        while True:
            try:
                piece = next(stream)
            except StopIteration as stop:
                return stop.value if isinstance(stop.value, AnswerEnd) else AnswerEnd()
            take(piece)


def iterate(runner: asyncio.Runner, deltas: AsyncGenerator[str, None]) -> Generator[str, None, None]:
    """Yield from an asynchronous generator outside of its event loop; close it when the iteration ends.

    Ctrl-C ends the iteration wherever it arrives: the runner may have begun a task by then that it no longer waits for.
    """
    begun: set[asyncio.Task[str]] = set()

    async def next_delta() -> str:
        task: asyncio.Task[str] | None = asyncio.current_task()
        assert task is not None
        begun.add(task)
        try:
            return await anext(deltas)
        finally:
            begun.discard(task)

    async def close() -> None:  # runs after all tasks that were begun before
        left = list(begun)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await deltas.aclose()

    try:
        while True:
            try:
                delta = _run(runner, next_delta())
            except StopAsyncIteration:
                return
            yield delta
    finally:
        _run(runner, close())


def _run(runner: asyncio.Runner, work: Coroutine[object, object, Result]) -> Result:
    """Run a coroutine; Ctrl-C raises KeyboardInterrupt.

    The runner itself raises CancelledError where Ctrl-C meets another cancellation, such as that of a time limit.
    """
    try:
        return runner.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
