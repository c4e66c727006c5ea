"""Work that ends when its client goes."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from app.api.disconnect import run_until_gone


class Client:
    """An ASGI `receive` that says what the test lets it say."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receive(self):
        return await self.messages.get()


async def forever(log: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(name)


async def test_finished_work_returns_its_result_and_ends_what_ran_beside():
    log: list[str] = []

    async def work():
        await asyncio.sleep(0)
        return 5

    assert await run_until_gone(Client().receive, work(), forever(log, "beside")) == 5
    assert log == ["beside"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_goes_cancels_the_work():
    client, log = Client(), []
    client.messages.put_nowait({"type": "http.request"})
    client.messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await run_until_gone(client.receive, forever(log, "work"), forever(log, "beside"))
    assert sorted(log) == ["beside", "work"]
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_of_the_work_is_raised():
    async def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_gone(Client().receive, work())


async def test_an_error_beside_ends_the_work():
    log: list[str] = []

    async def beside():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_gone(Client().receive, forever(log, "work"), beside())
    assert log == ["work"]


async def test_cancelling_the_caller_cancels_everything():
    log: list[str] = []
    task = asyncio.create_task(run_until_gone(Client().receive, forever(log, "work"), forever(log, "beside")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(log) == ["beside", "work"]
