"""Accounts take turns at the places, each in its own order; what may wait is bounded, and shared where it is full."""

import asyncio

import pytest

from app.contract.errors import Overloaded
from app.streaming.turns import Turns
from tests.fakes import turn_loop


class Queue:
    """Notes in which order places are given."""

    def __init__(self, num_places: int = 1, max_waiting: int = 100) -> None:
        self.turns = Turns(num_places, max_waiting)
        self.given: list[str] = []

    async def take(self, account: str, number: int) -> None:
        await self.turns.acquire(account)
        self.given.append(f"{account}{number}")

    async def ask(self, account: str, *numbers: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.take(account, number)) for number in numbers]
        await turn_loop()
        return tasks


async def test_a_thousand_of_one_account_make_another_wait_for_one():
    queue = Queue(max_waiting=1000)
    await queue.ask("a", *range(1000))
    await queue.ask("b", 0)
    for _ in range(4):
        queue.turns.release()
        await turn_loop()
    assert queue.given == ["a0", "a1", "b0", "a2", "a3"]
    queue.turns.release_all()


async def test_a_place_that_is_not_wanted_any_more_goes_on():
    queue = Queue()
    await queue.ask("a", 0)
    waiting, given = await queue.ask("a", 1, 2)
    waiting.cancel()
    await turn_loop()
    queue.turns.release()
    given.cancel()  # it was given the place, and has not run since
    await turn_loop()
    await queue.ask("b", 0)
    assert queue.given == ["a0", "b0"]
    assert not queue.turns._lines and not queue.turns._num_waiting


async def test_alone_an_account_may_fill_the_line_and_beside_it_another_gets_in():
    queue = Queue(max_waiting=4)
    await queue.ask("a", *range(5))
    with pytest.raises(Overloaded):
        await queue.turns.acquire("a")
    await queue.ask("b", 0, 1)
    with pytest.raises(Overloaded):
        await queue.turns.acquire("b")
    await queue.ask("c", 0)
    with pytest.raises(Overloaded):
        await queue.turns.acquire("a")
    queue.turns.release_all()
    await turn_loop()
    assert len(queue.given) == 8
