"""A bell wakes the one who waits, and remembers nothing."""

import asyncio

import pytest

from app.streaming.waker import Bell


async def test_a_ring_wakes_who_waits_and_none_is_kept():
    bell = Bell()
    bell.ring()
    for _ in range(2):
        waiting = asyncio.create_task(bell.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        bell.ring()
        bell.ring()
        await asyncio.wait_for(waiting, 30)


async def test_a_ring_after_the_waiter_was_cancelled_is_no_mistake():
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    bell.ring()
