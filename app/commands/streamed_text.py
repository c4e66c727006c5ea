"""An answer in the terminal: pieces of text from an ordinary generator, wherever the model runs.

Closing the generator early (`contextlib.closing`) ends the answer at its source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence

Messages = Sequence[dict[str, str]]
Pieces = Generator[str, None, None]


def iterate(runner: asyncio.Runner, pieces: AsyncGenerator[str, None]) -> Pieces:
    """Yield from an asynchronous generator outside of its event loop; it is closed when the iteration ends."""

    async def next_piece() -> str:
        return await anext(pieces)

    async def close() -> None:
        await pieces.aclose()

    try:
        while True:
            try:
                piece = runner.run(next_piece())
            except StopAsyncIteration:
                return
            yield piece
    finally:
        runner.run(close())
