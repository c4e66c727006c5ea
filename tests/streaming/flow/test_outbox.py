"""An outbox sends control frames first, then one frame of each stream in turn."""

import asyncio
from itertools import pairwise
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from app.streaming.flow.outbox import Outbox


class Source:
    """A stream with frames; counts the sent ones."""

    needs_last_turn = False

    def __init__(self, *frames: str) -> None:
        self.frames = list(frames)
        self.num_sent = -1

    def next_frame(self) -> str | None:
        """Return the next frame; the one before was sent."""
        self.num_sent += 1
        return self.frames.pop(0) if self.frames else None

    @property
    def has_more(self) -> bool:
        """Whether there are more frames, or a last turn is needed to note that the last frame was sent."""
        return bool(self.frames) or self.needs_last_turn


async def take(outbox: Outbox, count: int) -> list[str | None]:
    return [await asyncio.wait_for(outbox.get(), 30) for _ in range(count)]


async def test_streams_take_turns_and_control_frames_go_first():
    outbox = Outbox()
    outbox.mark_ready(Source("a1", "a2", "a3"))
    outbox.mark_ready(Source("b1"))
    outbox.put_control("pong")
    assert await take(outbox, 3) == ["pong", "a1", "b1"]
    outbox.put_control("done")
    assert await take(outbox, 3) == ["done", "a2", "a3"]


async def test_a_frame_is_built_in_its_turn():
    outbox, source = Outbox(), Source("a1")
    outbox.mark_ready(source)
    source.frames = ["a1 and a2"]
    assert await take(outbox, 1) == ["a1 and a2"]


async def test_a_source_gets_a_turn_after_its_last_frame_and_can_be_ready_again():
    outbox, source = Outbox(), Source("a1", "a2")
    source.needs_last_turn = True
    outbox.mark_ready(source)
    outbox.mark_ready(source)
    assert await take(outbox, 2) == ["a1", "a2"]
    assert source.num_sent == 1
    writer = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    assert source.num_sent == 2
    source.frames.append("a3")
    outbox.mark_ready(source)
    assert await writer == "a3"


async def test_a_control_frame_put_during_a_turn_is_sent_next():
    outbox = Outbox()

    class Ending(Source):
        def next_frame(self) -> str | None:
            frame = super().next_frame()
            if frame:
                outbox.put_control("done")
            return frame

    outbox.mark_ready(Ending("finish"))
    outbox.mark_ready(Source("b1"))
    assert await take(outbox, 3) == ["finish", "done", "b1"]


async def test_after_finish_only_control_frames_are_sent():
    outbox = Outbox()
    outbox.mark_ready(Source("a1"))
    outbox.put_control("error")
    outbox.finish()
    assert await take(outbox, 2) == ["error", None]


def test_what_is_finished_has_no_stream_any_more():
    outbox, source = Outbox(), Source("a1")
    found = ref(source)
    outbox.mark_ready(source)
    del source
    outbox.finish()
    assert found() is None


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


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_frames_keep_their_order_and_wait_at_most_one_turn_of_each_other_stream(sizes: list[int]):
    async def run() -> list[str | None]:
        outbox = Outbox()
        for name, size in enumerate(sizes):
            outbox.mark_ready(Source(*[f"{name}.{number}" for number in range(size)]))
        return await take(outbox, sum(sizes))

    sent = asyncio.run(run())
    for name, size in enumerate(sizes):
        positions = [sent.index(f"{name}.{number}") for number in range(size)]
        assert positions == sorted(positions)
        for before, after in pairwise(positions):
            between = [str(frame).split(".")[0] for frame in sent[before + 1 : after]]
            assert len(set(between)) == len(between)
