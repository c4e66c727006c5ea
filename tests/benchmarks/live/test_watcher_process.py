"""Watchers of the benchmark: they decode what they read, and know what they have missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from websockets.asyncio.client import ClientConnection

from app.contract.engine_picture import EnginePicture
from app.streaming.live.live_room import MAX_WATCHERS, LiveRoom
from benchmarks.live.watcher_process import Watchers
from tests.api.serving import HANG_S, make_app, serving, until
from tests.fakes import FakeEngine
from tests.streaming.live.pictures import group, picture, table

NUM_PICTURES = 4
NUM_BLOCKS = 50_000  # all change with each picture: more than the buffers of a connection hold


def striped(number: int) -> EnginePicture:
    """A picture in which every second block is used that was free in the one before."""
    held = table(range(1 + number % 2, NUM_BLOCKS, 2))
    return picture(number, [group("chatcmpl-a", [held])], num_blocks=NUM_BLOCKS)


@asynccontextmanager
async def watched_server() -> AsyncIterator[tuple[FakeEngine, LiveRoom, Watchers, Watchers]]:
    """A server whose engine shows what the test tells it to, its room, and two processes' worth of watchers."""
    engine = FakeEngine(held=True)
    engine.start()
    app = await make_app(engine)
    async with serving(app) as url, asyncio.timeout(HANG_S):
        port = int(url.rpartition(":")[2])
        yield engine, app.state.context.live, Watchers(port), Watchers(port)


async def test_one_that_reads_receives_every_picture_and_one_that_does_not_knows_what_it_missed():
    async with watched_server() as (engine, room, reader, stalled):
        beginning = asyncio.gather(reader.watch(1, True), stalled.watch(1, False))
        await until(lambda: room.num_watchers == 2)
        engine.port.show(striped(0))
        await beginning
        for number in range(1, NUM_PICTURES + 1):
            engine.port.show(striped(number))
            await until(lambda number=number: reader.present[0].num_pictures == number)
        read, missed = await reader.leave(), await stalled.leave()
    assert read["seconds"] > 0 and missed["seconds"] > 0
    # Figures alone may be told between two pictures.
    assert read["num_messages"] >= read["num_pictures"] == missed["num_pictures"] == NUM_PICTURES
    assert missed["num_messages"] < NUM_PICTURES and 0 < missed["num_bytes"] < read["num_bytes"]
    assert reader.present == stalled.present == []


async def test_who_comes_before_the_places_are_free_tries_again():
    async with watched_server() as (engine, room, before, after):
        watching = asyncio.create_task(before.watch(MAX_WATCHERS, True))
        await until(lambda: room.num_watchers == 1)
        engine.port.show(picture(0, num_blocks=8))
        await watching
        num_tries = 0

        async def tried(is_reading: bool, open_one=after._open) -> ClientConnection:
            nonlocal num_tries
            num_tries += 1
            return await open_one(is_reading)

        after._open = tried
        coming = asyncio.create_task(after.watch(1, True))
        await until(lambda: num_tries == 2)
        await before.leave()
        numbers = count(1)

        def has_come() -> bool:
            engine.port.show(picture(next(numbers), num_blocks=8))
            return coming.done()

        await until(has_come)
        await coming
        assert len(after.present) == 1
        await after.leave()
