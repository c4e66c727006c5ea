"""The connection in an ASGI scope, or one that does nothing; work that ends when its client disconnects."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from app.api.http.connection import EXTENSION, SEND, connection_of, direct_send, run_until_disconnect


class ServerConnection:
    """A connection as the server puts it into the scope."""

    def unread_bytes(self) -> int:
        return 7

    def abort(self) -> None:
        """Do nothing."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Do nothing."""


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_servers_connection_is_found_in_the_scope(kind):
    connection = ServerConnection()
    assert connection_of({"type": kind, "extensions": {EXTENSION: connection}}) is connection


@pytest.mark.parametrize("extensions", [{}, {"extensions": None}, {"extensions": {}}])
def test_without_a_server_connection_one_that_does_nothing_is_returned(extensions):
    connection = connection_of({"type": "http", **extensions})
    connection.abort()
    connection.set_kernel_patience(is_on=False)
    assert connection.unread_bytes() == 0


async def test_the_servers_own_send_is_found_if_there_is_one():
    async def own(message):
        """The one of the server."""

    async def wrapped(message):
        """The one that the application got."""

    assert direct_send({"type": "http", "extensions": {SEND: own}}, wrapped) is own
    assert direct_send({"type": "http", "extensions": None}, wrapped) is wrapped


class Client:
    """An ASGI `receive` whose messages the test puts into `messages`."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receive(self):
        return await self.messages.get()


async def forever(log: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(name)


async def test_finished_work_returns_its_result_and_cancels_the_tasks_beside_it():
    log: list[str] = []

    async def work():
        await asyncio.sleep(0)
        return 5

    assert await run_until_disconnect(Client().receive, work(), forever(log, "beside")) == 5
    assert log == ["beside"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_disconnect_cancels_the_work():
    client, log = Client(), []
    client.messages.put_nowait({"type": "http.request"})
    client.messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await run_until_disconnect(client.receive, forever(log, "work"), forever(log, "beside"))
    assert sorted(log) == ["beside", "work"]
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_of_the_work_is_raised():
    async def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_disconnect(Client().receive, work())


async def test_an_error_in_a_task_beside_cancels_the_work():
    log: list[str] = []

    async def beside():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until_disconnect(Client().receive, forever(log, "work"), beside())
    assert log == ["work"]


async def test_cancelling_the_caller_cancels_everything():
    log: list[str] = []
    task = asyncio.create_task(run_until_disconnect(Client().receive, forever(log, "work"), forever(log, "beside")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(log) == ["beside", "work"]
