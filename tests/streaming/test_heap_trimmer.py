"""The heap is trimmed once for many large requests, some time after them, and not after the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from app.streaming.background import Background
from app.streaming.heap_trimmer import HeapTrimmer
from tests.api.serving import HANG_S, until
from tests.fakes import turn_loop


class Trims:
    """Counts, on which threads too."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def threads() -> Iterator[Background]:
    made = Background("test", num_threads=1, max_queue=0)
    yield made
    made.close()


async def test_large_requests_are_followed_by_a_trim(threads: Background):
    trims = Trims()
    trimmer = HeapTrimmer(threads, 0.01, trims)
    trimmer.note_large()
    assert trims.threads == []
    await until(lambda: bool(trims.threads))
    await turn_loop()
    assert len(trims.threads) == 1 and trims.threads[0].startswith("quire-test")
    assert trimmer._timer is None
    trimmer.note_large()
    await until(lambda: len(trims.threads) == 2)


async def test_large_requests_within_the_delay_have_one_trim_of_their_own(threads: Background):
    # The values of the last one may still be there when the timer of the first one ends.
    trims = Trims()
    trimmer = HeapTrimmer(threads, 0.01, trims)
    for _ in range(5):
        trimmer.note_large()
    await until(lambda: len(trims.threads) == 2)
    await turn_loop()
    assert trimmer._timer is None


async def test_nothing_is_trimmed_while_all_threads_work(threads: Background):
    trims, gate = Trims(), threading.Event()
    trimmer = HeapTrimmer(threads, 0.0, trims)
    working = asyncio.create_task(threads.run(gate.wait, HANG_S))
    await turn_loop()
    trimmer.note_large()
    await until(lambda: trimmer._task is not None and trimmer._task.done())
    gate.set()
    await working
    assert trims.threads == []


async def test_nothing_is_trimmed_after_the_end(threads: Background):
    trims = Trims()
    trimmer = HeapTrimmer(threads, 0.0, trims)
    trimmer.note_large()
    trimmer.close()
    await turn_loop()

    assert trims.threads == [] and trimmer._task is None
    trimmer.close()
