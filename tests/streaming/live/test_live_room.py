"""Who watches: pictures only while somebody does, one encoding for each account, and nothing that queues up."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from app.client.live_picture import LivePicture
from app.contract.engine_picture import EnginePicture
from app.contract.errors import RateLimitExceeded
from app.contract.live_state import HEADER, MessageKind
from app.streaming.live.account_feed import MAX_RECORDS
from app.streaming.live.account_view import AccountView
from app.streaming.live.live_message import LiveMessage
from app.streaming.live.live_room import MAX_WATCHERS, LiveRoom
from tests.streaming.live.pictures import FIGURES, group, picture, table
from tests.streaming.live.vectors import step


class Engine:
    """An engine that makes the pictures that a test hands over; `watched` has each beginning and end."""

    def __init__(self) -> None:
        self.watched: list[bool] = []
        self._take: Callable[[EnginePicture], None] | None = None

    def watch(self, take: Callable[[EnginePicture], None] | None) -> None:
        self.watched.append(take is not None)
        self._take = take

    def show(self, made: EnginePicture) -> None:
        assert self._take is not None
        self._take(made)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def room(engine):
    room = LiveRoom(engine, lambda: FIGURES, shows_all=True)
    yield room
    room.close()


def kind_and_number(message: bytes) -> tuple[MessageKind, int]:
    kind, number, _ = HEADER.unpack_from(message)
    return MessageKind(kind), number


def made(number: int, **more) -> EnginePicture:
    return picture(number, [group("chatcmpl-a", [table(range(1, number + 1))])], **more)


async def within(waiting):
    return await asyncio.wait_for(waiting, 30)


async def test_the_engine_makes_pictures_while_somebody_watches(engine, room):
    with room.watching(""), room.watching("anna"):
        assert engine.watched == [True] and room.num_watchers == 2
    assert engine.watched == [True, False] and room.num_watchers == 0


async def test_whoever_keeps_up_gets_differences_behind_the_first_message(engine, room):
    with room.watching("") as watcher:
        seen = LivePicture()
        for number in (1, 2, 3):
            engine.show(made(number))
            message = await within(watcher.next())
            assert kind_and_number(message) == (MessageKind.WHOLE if number == 1 else MessageKind.DIFFERENCE, number)
            seen.receive(message)
        assert [*seen.owners] == [1, 1, 1] + [0] * 13


async def test_whoever_is_slow_gets_the_newest_message_whole_and_no_other(engine, room):
    with room.watching("") as slow, room.watching("") as fast:
        for number in (1, 2, 3, 4):
            engine.show(made(number))
            await within(fast.next())
            if number == 1:
                await within(slow.next())
        assert kind_and_number(await within(slow.next())) == (MessageKind.WHOLE, 4)
        engine.show(made(5))
        assert kind_and_number(await within(slow.next())) == (MessageKind.DIFFERENCE, 5)


async def test_a_newcomer_gets_the_last_message_of_an_idle_engine(engine, room):
    with room.watching("anna") as first:
        engine.show(made(1))
        await within(first.next())
        for account in ("anna", "boris"):
            with room.watching(account) as newcomer:
                assert kind_and_number(await within(newcomer.next())) == (MessageKind.WHOLE, 1)


async def test_figures_of_an_engine_at_rest_are_told_again_when_they_change_and_records_are_not(engine):
    figures = [FIGURES]
    room = LiveRoom(engine, lambda: figures[-1], shows_all=True, rest_s=0.001)
    with contextlib.closing(room), room.watching("") as watcher:
        engine.show(made(1, records=[step(1000.0, ("chatcmpl-a", 0, 1, 0))], num_lost=1))
        seen = LivePicture()
        seen.receive(await within(watcher.next()))
        for speed in (3.0, 0.0):
            figures.append(msgspec.structs.replace(FIGURES, tokens_per_s=speed))
            seen.receive(await within(watcher.next()))
            assert seen.state is not None and seen.state.figures.tokens_per_s == speed
            assert (seen.state.records, seen.state.lost, [*seen.owners[:2]]) == ([], 0, [1, 0])
        assert seen.number == 3
        engine.show(made(2))
        seen.receive(await within(watcher.next()))
        assert seen.number == 4  # nothing between: the figures have not changed
    assert engine.watched == [True, False]


async def test_whoever_comes_after_all_have_left_waits_for_a_new_picture(engine, room):
    with room.watching("") as first:
        engine.show(made(1))
        await within(first.next())
    with room.watching("") as second:
        waiting = asyncio.ensure_future(second.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        engine.show(made(2))
        assert kind_and_number(await within(waiting)) == (MessageKind.WHOLE, 1)


async def test_a_picture_is_encoded_once_for_each_account(engine, room):
    with ExitStack() as stack, patch.object(AccountView, "next_message", autospec=True) as encode:
        encode.side_effect = lambda *_: LiveMessage(1, b"{}", _CELLS, None)
        watchers = [stack.enter_context(room.watching(account)) for account in ("anna", "anna", "anna", "boris")]
        engine.show(made(1))
        messages = [await within(watcher.next()) for watcher in watchers]
        assert encode.call_count == 2 and messages[0] is messages[1] is messages[2]


_CELLS = np.zeros(16, np.int64)


async def test_pictures_that_come_before_one_is_encoded_become_one_with_all_records(engine, room):
    with room.watching("") as watcher:
        seen = LivePicture()
        for number in range(1, 6):
            engine.show(made(number, records=[step(1000.0 + number, ("chatcmpl-a", 0, 1, 0))], num_lost=1))
        seen.receive(await within(watcher.next()))
        assert seen.number == 1 and seen.state is not None
        assert len(seen.state.records) == 5 and seen.state.lost == 5
        assert seen.state.blocks.used == 5


async def test_at_most_so_many_records_wait(engine, room):
    records = [step(1000.0, ("chatcmpl-a", 0, 1, 0))] * 3000
    with room.watching("") as watcher:
        for number in (1, 2, 3):
            engine.show(made(number, records=records, num_lost=1))
        seen = LivePicture()
        seen.receive(await within(watcher.next()))
        assert seen.state is not None
        assert (len(seen.state.records), seen.state.lost) == (MAX_RECORDS, 9000 - MAX_RECORDS + 3)


async def test_only_so_many_may_watch(engine, room):
    with ExitStack() as stack:
        for number in range(MAX_WATCHERS):
            stack.enter_context(room.watching(f"account {number}"))
        for account in ("anna", "account 1"):
            with pytest.raises(RateLimitExceeded, match="16 watch already"), room.watching(account):
                pass
        assert room.num_watchers == MAX_WATCHERS
    with room.watching("anna"):
        assert engine.watched == [True, False, True]


async def test_an_account_with_all_places_gives_up_its_newest_ones_until_all_have_their_share(engine, room):
    with ExitStack() as stack:
        mine = [stack.enter_context(room.watching("anna")) for _ in range(MAX_WATCHERS)]
        engine.show(made(1))
        for watcher in mine:
            await within(watcher.next())
        waiting = asyncio.create_task(mine[-1].next())
        await asyncio.sleep(0)
        others = [stack.enter_context(room.watching("ben")) for _ in range(MAX_WATCHERS // 2)]
        with pytest.raises(RateLimitExceeded, match="Another account"):
            await within(waiting)
        with pytest.raises(RateLimitExceeded, match="16 watch already"), room.watching("ben"):
            pass
        assert room.num_watchers == MAX_WATCHERS
        engine.show(made(2))
        kept, displaced = mine[: MAX_WATCHERS // 2], mine[MAX_WATCHERS // 2 :]
        for watcher in kept + others:
            while (number := kind_and_number(await within(watcher.next()))[1]) == 1:
                pass  # who came last may be told of the first picture before
            assert number == 2
        for watcher in displaced:
            with pytest.raises(RateLimitExceeded, match="Another account"):
                await within(watcher.next())
    assert engine.watched == [True, False] and room.num_watchers == 0


async def test_a_displaced_watcher_that_leaves_last_ends_nothing(engine, room):
    with ExitStack() as late, ExitStack() as early:
        for _ in range(MAX_WATCHERS - 1):
            early.enter_context(room.watching("anna"))
        late.enter_context(room.watching("anna"))
        early.enter_context(room.watching("ben"))
        early.close()
        assert engine.watched == [True, False]
        with room.watching("anna"):
            late.close()
            assert room.num_watchers == 1
    assert engine.watched == [True, False, True, False]


async def test_a_picture_that_cannot_be_encoded_ends_the_watching(engine, room):
    with room.watching("") as watcher:
        engine.show(picture(1, [group("chatcmpl-a", [table([99])])], num_blocks=100))
        await within(watcher.next())
        broken = made(2)
        object.__setattr__(broken, "references", b"\x00")
        engine.show(broken)
        with pytest.raises(ValueError):
            await within(watcher.next())


async def test_a_cancelled_watcher_takes_nothing_from_others(engine, room):
    with room.watching("") as one, room.watching("") as other:
        waiting = [asyncio.ensure_future(watcher.next()) for watcher in (one, other)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        engine.show(made(1))
        assert kind_and_number(await within(waiting[1])) == (MessageKind.WHOLE, 1)
        assert kind_and_number(await within(one.next())) == (MessageKind.WHOLE, 1)
