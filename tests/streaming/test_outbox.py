"""One connection is fair to its streams: control frames first, then one frame of each in turn."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from app.streaming.outbox import Outbox
from tests.fakes import turn_loop


async def take(outbox: Outbox, count: int) -> list[str | None]:
    return [await outbox.get() for _ in range(count)]


async def test_streams_take_turns_and_control_frames_go_first():
    outbox = Outbox()
    long = asyncio.create_task(outbox.put(["a1", "a2", "a3"]))
    short = asyncio.create_task(outbox.put(["b1"]))
    await asyncio.sleep(0)
    outbox.put_control("pong")
    assert await take(outbox, 3) == ["pong", "a1", "b1"]
    outbox.put_control("done")
    assert await take(outbox, 3) == ["done", "a2", "a3"]
    await asyncio.gather(long, short)


async def test_put_returns_when_the_last_frame_is_taken():
    outbox = Outbox()
    put = asyncio.create_task(outbox.put(["a1", "a2"]))
    await take(outbox, 1)
    await turn_loop()
    assert not put.done()
    await take(outbox, 1)
    await put


async def test_an_empty_batch_does_not_wait():
    await Outbox().put([])


async def test_after_finish_only_control_frames_are_left():
    outbox = Outbox()
    put = asyncio.create_task(outbox.put(["a1"]))
    await asyncio.sleep(0)
    outbox.put_control("error")
    outbox.finish()
    assert await take(outbox, 2) == ["error", None]
    put.cancel()


async def test_finish_wakes_the_writer():
    outbox = Outbox()
    writer = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.finish()
    assert await writer is None


async def test_a_cancelled_get_loses_no_frame():
    outbox = Outbox()
    writer = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put_control("pong")
    writer.cancel()
    await asyncio.wait([writer])
    assert await outbox.get() == "pong"


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=5))
def test_every_stream_keeps_its_order_and_waits_at_most_one_turn_of_the_others(batches: list[list[int]]):
    async def run() -> list[str]:
        outbox = Outbox()

        async def stream(name: int, sizes: list[int]) -> None:
            for batch, size in enumerate(sizes):
                await outbox.put([f"{name}.{batch}.{number}" for number in range(size)])

        tasks = [asyncio.create_task(stream(name, sizes)) for name, sizes in enumerate(batches)]
        sent = []
        for _ in range(sum(map(sum, batches))):
            frame = await asyncio.wait_for(outbox.get(), 5)
            sent.append(frame)
            await turn_loop(2)
        await asyncio.gather(*tasks)
        return sent

    sent = asyncio.run(run())
    for name, sizes in enumerate(batches):
        own = [frame for frame in sent if frame.startswith(f"{name}.")]
        assert own == [f"{name}.{batch}.{number}" for batch, size in enumerate(sizes) for number in range(size)]
    first_turn = sent[: sum(1 for sizes in batches if sizes)]
    assert len({frame.split(".")[0] for frame in first_turn}) == len(first_turn)
