"""Runs work for a client only as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Result = TypeVar("Result")


class ClientStalled(ClientDisconnect):
    """The client took nothing for the stall timeout, so its connection was given up."""


async def run_until_gone(
    receive: Receive, work: Coroutine[Any, Any, Result], *beside: Coroutine[Any, Any, None]
) -> Result:
    """Return the result of `work`; what runs `beside` it ends with it. Cancel-safe: all of it is cancelled, too.

    The request's body must have been read: `receive` then has only the disconnect left to say.

    Raises:
        ClientDisconnect: the client went away before the work was done; it was cancelled. So it is by what runs beside
            it and raises.
    """
    main = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [
        main,
        asyncio.create_task(_disconnect(receive)),
        *map(asyncio.create_task, beside),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if main not in done:
            for task in done:
                task.result()
        return main.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
