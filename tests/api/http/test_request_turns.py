"""Many requests of one client begin in turns, and those of another one come between."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from app.api.http.request_turns import MAX_BEGUN, RequestTurns

FLOOD, OTHER = "192.0.2.1", "192.0.2.2"


class Begun:
    """An application that notes the addresses and ports of requests as they begin, and how many begin in each turn."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.ports: list[int] = []
        self.by_turn: list[int] = [0]
        self.app = RequestTurns(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address, port = scope["client"] or ("", 0)
        self.order.append(address)
        self.ports.append(port)
        self.by_turn[-1] += 1

    def ask(self, address: str | None, port: int = 1) -> asyncio.Task[None]:
        scope = {"type": "http", "client": None if address is None else (address, port)}
        return asyncio.ensure_future(self.app(scope, _never, _nothing))

    async def turn(self) -> None:
        """Let one turn of the loop pass."""
        await asyncio.sleep(0)
        self.by_turn.append(0)


async def _never() -> dict[str, object]:
    raise AssertionError


async def _nothing(message: object) -> None:
    raise AssertionError


@pytest.fixture
def begun() -> Begun:
    return Begun()


async def test_the_request_of_another_client_begins_at_once(begun: Begun):
    flood = [begun.ask(FLOOD) for _ in range(10 * MAX_BEGUN)]
    other = begun.ask(OTHER)
    await other
    assert begun.order == [FLOOD] * MAX_BEGUN + [OTHER]
    await asyncio.gather(*flood)
    assert begun.order.count(FLOOD) == len(flood)


async def test_no_turn_begins_more_than_it_may(begun: Begun):
    waiting = [begun.ask(FLOOD) for _ in range(5 * MAX_BEGUN + 3)]
    while not all(task.done() for task in waiting):
        await begun.turn()
    assert max(begun.by_turn) <= MAX_BEGUN
    assert sum(begun.by_turn) == len(waiting)


@pytest.mark.parametrize("address", ["2001:db8::{}", "::ffff:192.0.2.7"])
async def test_the_addresses_of_one_client_count_together(begun: Begun, address: str):
    tasks = [begun.ask(address.format(number + 1)) for number in range(2 * MAX_BEGUN)]
    await begun.turn()
    await begun.turn()
    assert len(begun.order) < len(tasks)
    await asyncio.gather(*tasks)


async def test_they_begin_in_the_order_of_their_coming(begun: Begun):
    tasks = []
    for number in range(4 * MAX_BEGUN):
        tasks.append(begun.ask(FLOOD, number))
        if number % 3 == 0:
            await begun.turn()
    await asyncio.gather(*tasks)
    assert begun.ports == sorted(begun.ports) == [*range(4 * MAX_BEGUN)]


async def test_a_request_that_is_cancelled_takes_nobodys_turn(begun: Begun):
    tasks = [begun.ask(FLOOD) for _ in range(3 * MAX_BEGUN)]
    await begun.turn()
    for task in tasks[MAX_BEGUN : 2 * MAX_BEGUN]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(begun.order) == 2 * MAX_BEGUN
    await begun.ask(FLOOD)  # nothing is left behind


async def test_a_connection_without_an_address_is_served(begun: Begun):
    await begun.ask(None)
    assert begun.order == [""]
