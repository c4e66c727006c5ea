"""A waker wakes its one waiter, and keeps no state."""

import asyncio

import pytest

from app.streaming.waker import Waker


async def test_a_wake_without_a_waiter_is_not_kept():
    waker = Waker()
    waker.wake()
    for _ in range(2):
        waiting = asyncio.create_task(waker.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        waker.wake()
        waker.wake()
        await asyncio.wait_for(waiting, 30)


async def test_a_wake_after_the_waiter_was_cancelled_does_nothing():
    waker = Waker()
    waiting = asyncio.create_task(waker.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    waker.wake()
