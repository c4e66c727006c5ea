"""A waker wakes the one who waits, and remembers nothing."""

import asyncio

import pytest

from app.streaming.waker import Waker


async def test_a_ring_wakes_who_waits_and_none_is_kept():
    waker = Waker()
    waker.wake()
    for _ in range(2):
        waiting = asyncio.create_task(waker.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        waker.wake()
        waker.wake()
        await asyncio.wait_for(waiting, 30)


async def test_a_ring_after_the_waiter_was_cancelled_is_no_mistake():
    waker = Waker()
    waiting = asyncio.create_task(waker.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    waker.wake()
