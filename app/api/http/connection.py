"""The connection of a request: what the server provides of it, and work that ends when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.streaming.flow.ack_monitor import Connection

EXTENSION = "quire.connection"
"""The name of the connection in a scope's `extensions`."""
SEND = "quire.send"
"""The name of the server's own `send` in a scope's `extensions`."""
Result = TypeVar("Result")


class ClientStalled(ClientDisconnect):
    """The client read nothing for the stall timeout, so it is disconnected."""


class _NoConnection:
    """Used if the server provides no connection, as in tests without sockets."""

    def unread_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        """Do nothing."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Do nothing."""


def connection_of(scope: Scope) -> Connection:
    """Return the connection of an HTTP or WebSocket scope; one that does nothing if the server provides none."""
    connection: Connection = (scope.get("extensions") or {}).get(EXTENSION) or _NoConnection()
    return connection


def direct_send(scope: Scope, send: Send) -> Send:
    """Return the server's own `send`, for use after the response has begun; `send` if the server provides none.

    The wrappers of middleware and router around `send` are only needed until a response has begun or a WebSocket is
    accepted; for each token of each stream they cost as much as making its JSON.
    """
    direct: Send = (scope.get("extensions") or {}).get(SEND) or send
    return direct


async def run_until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, Result], *beside: Coroutine[Any, Any, None]
) -> Result:
    """Return the result of `work`, and cancel the coroutines `beside` it. Cancel-safe: all of them are cancelled.

    The request's body must have been read, so that `receive` can only return the disconnect.

    Raises:
        ClientDisconnect: the client disconnected first; `work` was cancelled. An exception of a coroutine `beside`
            cancels it too, and is raised.
    """
    main = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [main, *map(asyncio.create_task, (_disconnect(receive), *beside))]
    done: set[asyncio.Task[Any]] = set()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if main not in done:
            for task in done:
                task.result()
        return main.result()
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # A raised exception refers to this frame, and its task to the exception: the request, perhaps megabytes,
            # would stay until cycles are collected.
            del main, task, tasks, done


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
