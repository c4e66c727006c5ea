"""The server of the tests ends when it is told to, from its own thread or another one, also before it serves."""

import asyncio
import socket
import threading

import pytest
import uvicorn

from tests.quick_server import QuickServer, until


async def nothing(scope: object, receive: object, send: object) -> None:
    """An application that nobody asks."""


def server() -> QuickServer:
    return QuickServer(uvicorn.Config(nothing, log_config=None, lifespan="off"))


@pytest.mark.parametrize("is_other_thread", [False, True])
async def test_it_ends_when_it_is_told_to(is_other_thread: bool) -> None:
    served = server()
    serving = asyncio.create_task(served._serve([socket.create_server(("127.0.0.1", 0))]))
    await until(lambda: served._woken)
    assert not serving.done()
    thread = threading.Thread(target=setattr, args=(served, "should_exit", True))
    if is_other_thread:
        thread.start()
        await asyncio.to_thread(thread.join)
    else:
        served.should_exit = True
    await asyncio.wait_for(serving, 240)
    served.should_exit = True  # again, when it has ended


async def test_it_ends_at_once_when_it_was_told_before_it_serves() -> None:
    served = server()
    served.should_exit = True
    await asyncio.wait_for(served._serve([socket.create_server(("127.0.0.1", 0))]), 240)


def test_it_may_be_told_when_its_loop_is_closed() -> None:
    served = server()

    async def serve() -> None:
        serving = asyncio.create_task(served._serve([socket.create_server(("127.0.0.1", 0))]))
        await until(lambda: served._woken)
        served.should_exit = True
        await serving

    asyncio.run(serve())
    served.should_exit = True
    assert served.should_exit
