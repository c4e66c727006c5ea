"""Ways that end together: the tasks of a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from app.streaming.chat_actions import Close


async def first_of(*ways: Coroutine[Any, Any, Close | None]) -> Close | None:
    """Run coroutines until the first one ends, return its result, and cancel the others. Cancel-safe."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
