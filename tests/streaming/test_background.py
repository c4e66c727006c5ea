"""Background work is bounded and shared between accounts, and its errors are raised to the caller."""

import asyncio
import gc
import threading
import weakref

import pytest

from app.contract.errors import Draining, Overloaded
from app.streaming.background import Background, FairSemaphore
from tests.fakes import turn_loop


class LargeArgument:
    """An argument that must be released with its call."""


@pytest.fixture
def background():
    background = Background("test", num_threads=1, max_queue=1)
    yield background
    background.close()


async def test_work_runs_on_another_thread(background: Background):
    assert await background.run(threading.get_ident) != threading.get_ident()


async def test_exceptions_are_raised_to_the_caller(background: Background):
    with pytest.raises(ValueError, match="invalid literal"):
        await background.run(int, "x")


async def test_the_arguments_of_a_call_that_raises_are_released_with_its_exception(background: Background):
    """Without a collection of cycles, which comes after many requests: each may have megabytes."""

    def fail(argument: LargeArgument) -> None:
        raise ValueError

    argument = LargeArgument()
    alive = weakref.ref(argument)
    gc.disable()
    try:
        with pytest.raises(ValueError):
            await background.run(fail, argument)
        del argument
        await turn_loop()
        assert alive() is None
    finally:
        gc.enable()


async def test_a_full_queue_rejects_calls_until_one_ends(background: Background):
    gate = threading.Event()
    first = asyncio.create_task(background.run(gate.wait, 30))
    second = asyncio.create_task(background.run(gate.wait, 30))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await background.run(int, "1")
    gate.set()
    assert await first and await second
    assert await background.run(int, "1") == 1


async def test_a_cancelled_waiting_call_frees_its_place(background: Background):
    gate = threading.Event()
    first = asyncio.create_task(background.run(gate.wait, 30))
    second = asyncio.create_task(background.run(gate.wait, 30))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.create_task(background.run(int, "3"))
    await asyncio.sleep(0)
    gate.set()
    assert await third == 3
    assert await first


async def test_a_cancelled_waiting_call_releases_its_arguments(background: Background):
    gate = threading.Event()
    first = asyncio.create_task(background.run(gate.wait, 30))
    await asyncio.sleep(0)
    held = []
    for _ in range(50):
        argument = LargeArgument()
        held.append(weakref.ref(argument))
        call = asyncio.create_task(background.run(id, argument))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    del argument, call
    gc.collect()
    assert [ref for ref in held if ref() is not None] == []
    gate.set()
    assert await first


async def test_a_cancelled_running_call_keeps_its_place_until_its_thread_is_done(background: Background):
    gate, begun = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return gate.wait(30)

    first = asyncio.create_task(background.run(work))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(begun.wait, 30)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(background.run(int, "2"))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await background.run(int, "3")
    gate.set()
    assert await second == 2


async def test_close_rejects_waiting_calls_and_finishes_running_ones(background: Background):
    gate = threading.Event()
    first = asyncio.create_task(background.run(gate.wait, 30))
    second = asyncio.create_task(background.run(int, "2"))
    await asyncio.sleep(0)
    background.close()
    with pytest.raises(Draining):
        await second
    gate.set()
    assert await first


async def test_a_closed_background_rejects_calls(background: Background):
    background.close()
    background.close()
    with pytest.raises(Draining):
        await background.run(int, "1")


async def test_the_error_of_a_cancelled_call_is_not_logged(background: Background):
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    gate = threading.Event()
    call = asyncio.create_task(background.run(lambda: int("x" * gate.wait(30))))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    gate.set()
    assert await background.run(int, "1") == 1, "the thread is free again"
    del call
    gc.collect()
    assert not logged


# --- Accounts take turns ----------------------------------------------------------------------------------------------


class Queue:
    """A fair semaphore that records the order of its permits."""

    def __init__(self, num_permits: int = 1, max_waiting: int = 100) -> None:
        self.semaphore = FairSemaphore(num_permits, max_waiting)
        self.given: list[str] = []

    async def take(self, account: str, number: int) -> None:
        await self.semaphore.acquire(account)
        self.given.append(f"{account}{number}")

    async def request(self, account: str, *numbers: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.take(account, number)) for number in numbers]
        await turn_loop()
        return tasks


async def test_another_account_waits_for_one_permit_behind_a_thousand_calls():
    queue = Queue(max_waiting=1000)
    await queue.request("a", *range(1000))
    await queue.request("b", 0)
    for _ in range(4):
        queue.semaphore.release()
        await turn_loop()
    assert queue.given == ["a0", "b0", "a1", "a2", "a3"]
    queue.semaphore.release_all()


async def test_the_permit_of_a_cancelled_caller_is_passed_on():
    queue = Queue()
    await queue.request("a", 0)
    waiting, given = await queue.request("a", 1, 2)
    waiting.cancel()
    await turn_loop()
    queue.semaphore.release()
    given.cancel()  # it has the permit, but has not run yet
    await turn_loop()
    await queue.request("b", 0)
    assert queue.given == ["a0", "b0"]
    assert not queue.semaphore._queues


async def test_one_account_can_fill_the_queue_and_another_is_still_admitted():
    queue = Queue(max_waiting=4)
    await queue.request("a", *range(5))
    with pytest.raises(Overloaded):
        await queue.semaphore.acquire("a")
    await queue.request("b", 0, 1)
    with pytest.raises(Overloaded):
        await queue.semaphore.acquire("b")
    await queue.request("c", 0)
    with pytest.raises(Overloaded):
        await queue.semaphore.acquire("a")
    queue.semaphore.release_all()
    await turn_loop()
    assert len(queue.given) == 8
