"""A streamed answer as an ordinary generator of text deltas, from a local model or from a server.

Closing the generator early (`contextlib.closing`) stops the generation of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence

Messages = Sequence[dict[str, str]]
TextStream = Generator[str, None, None]


def iterate(runner: asyncio.Runner, deltas: AsyncGenerator[str, None]) -> TextStream:
    """Yield from an asynchronous generator outside of its event loop; close it when the iteration ends."""

    async def next_delta() -> str:
        return await anext(deltas)

    async def close() -> None:
        await deltas.aclose()

    try:
        while True:
            try:
                delta = runner.run(next_delta())
            except StopAsyncIteration:
                return
            yield delta
    finally:
        runner.run(close())
