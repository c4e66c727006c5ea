"""Under one key the same request has one answer: who is first, who waits, who is rejected, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.contract.errors import IdempotencyConflict, Overloaded, RateLimitExceeded
from app.streaming.kept.idempotency_keys import MAX_WAITING, IdempotencyKeys, KeyName, is_idempotency_key
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import MAX_READERS, LiveStream
from tests.fakes import turn_loop
from tests.streaming.kept.live_engine import LateCalls, LiveEngine, live_stream

NAME = KeyName("account", "/route", "key")


class Requests:
    """Requests under a key, each a task; `first` is released by the test."""

    def __init__(self) -> None:
        self.timers = LateCalls()
        self.kept = KeptStreams(2**20, call_later=self.timers)
        self.keys = self.kept.keys
        self.tasks: list[asyncio.Task[LiveStream]] = []
        self.prepared: list[int] = []
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, fingerprint: bytes = b"1", name: KeyName = NAME) -> asyncio.Task[LiveStream]:
        task = asyncio.create_task(self.answer(len(self.tasks), fingerprint, name))
        self.tasks.append(task)
        return task

    async def answer(self, number: int, fingerprint: bytes, name: KeyName) -> LiveStream:
        async with self.keys.claimed(name, fingerprint) as answer:
            if answer.stream is not None:
                return answer.stream
            self.prepared.append(number)
            outcome = await asyncio.shield(self.outcome)
            if outcome == "rejected":
                self.outcome = asyncio.get_running_loop().create_future()
                raise Overloaded("The queue is full.")
            stream = live_stream(LiveEngine(), f"r{number}")
            if outcome == "kept":
                assert self.kept.keep(stream)
                self.keys.keep(name, stream)
            return stream


@asynccontextmanager
async def waiting(num_requests: int) -> AsyncIterator[Requests]:
    """Requests of which the first is prepared; nothing of them is left at the end."""
    requests = Requests()
    for _ in range(num_requests):
        requests.send()
    await turn_loop()
    assert requests.prepared == [0]
    yield requests
    await asyncio.gather(*requests.tasks, return_exceptions=True)
    requests.timers.fire()
    assert len(requests.keys) == len(requests.kept) == 0


async def test_later_requests_wait_for_the_first_and_read_its_stream():
    async with waiting(4) as requests:
        requests.outcome.set_result("kept")
        streams = await asyncio.gather(*requests.tasks)
        assert {stream.id for stream in streams} == {"r0"}
        assert (await requests.send()).id == "r0"
        assert requests.prepared == [0]


async def test_after_a_rejected_first_one_the_next_is_prepared():
    async with waiting(3) as requests:
        requests.outcome.set_result("rejected")
        await turn_loop()
        assert requests.prepared == [0, 1]
        requests.outcome.set_result("kept")
        with pytest.raises(Overloaded):
            await requests.tasks[0]
        assert [(await task).id for task in requests.tasks[1:]] == ["r1", "r1"]


async def test_a_cancelled_request_gives_its_turn_to_the_next():
    async with waiting(3) as requests:
        requests.tasks[1].cancel()
        requests.tasks[0].cancel()
        await turn_loop()
        assert requests.prepared == [0, 2]
        requests.outcome.set_result("kept")
        assert (await requests.tasks[2]).id == "r2"


async def test_an_answer_that_is_not_kept_leaves_no_key():
    async with waiting(2) as requests:
        requests.outcome.set_result("ordinary")
        assert [(await task).id for task in requests.tasks] == ["r0", "r1"]
        assert len(requests.keys) == 0


async def test_another_request_under_a_key_is_rejected_while_it_is_used():
    async with waiting(1) as requests:
        with pytest.raises(IdempotencyConflict):
            await requests.send(b"2")
        requests.outcome.set_result("kept")
        await requests.tasks[0]
        with pytest.raises(IdempotencyConflict):
            await requests.send(b"2")
        requests.timers.fire()
        assert (await requests.send(b"2")).id == "r3"


@pytest.mark.parametrize("other", [NAME._replace(account="b"), NAME._replace(route="/b"), NAME._replace(key="b")])
async def test_keys_are_those_of_an_account_and_a_route(other: KeyName):
    async with waiting(1) as requests:
        requests.outcome.set_result("kept")
        assert (await requests.send(b"2", other)).id == "r1"


async def test_as_many_wait_as_may_read():
    async with waiting(1 + MAX_READERS) as requests:
        with pytest.raises(RateLimitExceeded):
            await requests.send()
        requests.outcome.set_result("kept")
        await asyncio.gather(*requests.tasks, return_exceptions=True)
        assert (await requests.send()).id == "r0"


async def test_an_account_with_its_share_of_all_that_wait_is_rejected_and_others_are_not():
    async with waiting(1) as requests:
        for number in range(MAX_WAITING):
            requests.send(name=NAME._replace(key=f"key-{number // MAX_READERS}"))
        for number in range(MAX_WAITING // MAX_READERS):
            requests.send(name=NAME._replace(key=f"key-{number}"))
        await turn_loop()
        with pytest.raises(Overloaded):
            await requests.send()
        other = NAME._replace(account="other")
        waits = [requests.send(name=other), requests.send(name=other)]
        await turn_loop()
        requests.outcome.set_result("kept")
        assert len({(await task).id for task in waits}) == 1


async def test_a_stream_that_is_let_go_frees_its_key():
    keys = IdempotencyKeys()
    stream = live_stream(LiveEngine())
    async with keys.claimed(NAME, b"1"):
        keys.keep(NAME, stream)
    async with keys.claimed(NAME, b"1") as answer:
        keys.forget(stream)
        keys.forget(stream)
        assert answer.stream is None
        assert len(keys) == 1
    assert len(keys) == 0


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        ("a", True),
        ("!~-_." * 51, True),
        ("", False),
        ("x" * 256, False),
        ("a b", False),
        ("é", False),
        ("a\x7f", False),
    ],
)
def test_keys_are_visible_ascii(text: str, is_key: bool):
    assert is_idempotency_key(text) is is_key
