"""Requests wait for what the store has of their prompts, with their commands, and a store that hangs keeps none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Event

import pytest

from app.contract.errors import EngineFailed
from app.contract.requests import Abort, EngineCommand, EngineRequest, Pause, Submit
from app.contract.sampling_params import SamplingParams
from app.contract.stored_prefix import StoredPrefix
from app.streaming import fetching_port
from app.streaming.fetching_port import FetchingPort

LONG_S = 60.0


class Store:
    """A store with the prompts that begin with 1; a read waits until `can_go_on` is set."""

    def __init__(self) -> None:
        self.can_go_on, self.is_reading = Event(), Event()
        self.fetched: list[str] = []
        self.limits: list[float] = []
        self.longest = LONG_S
        self.closed: tuple[float, bool] | None = None
        self.error: Exception | None = None

    def limit_s(self, request: EngineRequest) -> float:
        return self.longest if request.prompt_token_ids[0] == 1 else 0.0

    def fetch(self, request: EngineRequest, limit_s: float) -> StoredPrefix | None:
        self.fetched.append(request.id)
        self.limits.append(limit_s)
        self.is_reading.set()
        assert self.can_go_on.wait(LONG_S)
        if self.error is not None:
            raise self.error
        return StoredPrefix(0, 1, memoryview(b"stored"))

    def close(self, limit_s: float, *, has_ended: bool) -> None:
        self.closed = (limit_s, has_ended)


class Inner:
    """The port behind, which notes what comes."""

    def __init__(self) -> None:
        self.commands: list[EngineCommand] = []
        self.has_come = asyncio.Event()
        self.is_stopped = False

    def post(self, command: EngineCommand) -> None:
        self.commands.append(command)
        self.has_come.set()

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> bool:
        return timeout_s > 0

    async def until(self, count: int) -> None:
        async with asyncio.timeout(LONG_S):
            while len(self.commands) < count:
                self.has_come.clear()
                await self.has_come.wait()


def submit(name: str, first: int = 1) -> Submit:
    return Submit(EngineRequest(name, (first, 2, 3), SamplingParams(max_tokens=1, seed=0), 0.0))


def names(inner: Inner) -> list[str]:
    return [
        f"{type(each).__name__} {each.request.id if isinstance(each, Submit) else each.request_id}"
        for each in inner.commands
    ]


async def test_commands_wait_with_their_request_and_others_do_not():
    store, inner = Store(), Inner()
    port = FetchingPort(inner, store)
    for command in (submit("a"), Pause("a"), submit("b", first=2), Abort("a"), Abort("b")):
        port.post(command)
    assert names(inner) == ["Submit b", "Abort b"]
    store.can_go_on.set()
    await inner.until(5)
    assert names(inner)[2:] == ["Submit a", "Pause a", "Abort a"]
    given = inner.commands[2]
    assert isinstance(given, Submit) and given.request.stored is not None
    assert bytes(given.request.stored.data) == b"stored"
    port.post(Abort("a"))
    assert names(inner)[5:] == ["Abort a"]


async def test_requests_are_read_one_after_the_other_and_submitted_as_they_are_read():
    store, inner = Store(), Inner()
    port = FetchingPort(inner, store)
    store.can_go_on.set()
    for name in "abc":
        port.post(submit(name))
    await inner.until(3)
    assert store.fetched == ["a", "b", "c"] and names(inner) == ["Submit a", "Submit b", "Submit c"]


async def test_a_store_that_hangs_makes_prompts_cold_and_keeps_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching_port, "GRACE_S", 0.01)
    store, inner, now = Store(), Inner(), [0.0]
    store.longest = 0.01
    port = FetchingPort(inner, store, lambda: now[0])
    port.post(submit("a"))
    await inner.until(1)
    first = inner.commands[0]
    assert isinstance(first, Submit) and first.request.stored is None
    await asyncio.to_thread(store.is_reading.wait, LONG_S)
    now[0] = 1.0
    port.post(submit("b"))
    assert names(inner) == ["Submit a", "Submit b"]  # at once: the read of the first still hangs
    store.can_go_on.set()
    store.longest, now[0] = LONG_S, 0.0  # it hangs no longer
    port.post(submit("c"))
    await inner.until(3)
    third = inner.commands[2]
    assert isinstance(third, Submit) and third.request.stored is not None


async def test_a_request_that_waited_for_another_read_has_less_time_for_its_own():
    store, inner, now = Store(), Inner(), [0.0]
    port = FetchingPort(inner, store, lambda: now[0])
    for name in "ab":
        port.post(submit(name))
    await asyncio.to_thread(store.is_reading.wait, LONG_S)
    now[0] = 25.0
    store.can_go_on.set()
    await inner.until(2)
    assert store.limits == [LONG_S, LONG_S - 25.0]


async def test_a_request_does_not_wait_until_it_may_not_start_any_more():
    store, inner = Store(), Inner()
    port = FetchingPort(inner, store, lambda: 0.0)
    store.can_go_on.set()
    port.post(Submit(replace(submit("a").request, start_deadline=10.0)))
    await inner.until(1)
    assert store.limits == [5.0]


@pytest.mark.parametrize("error", [EngineFailed("no"), ValueError("a bug")], ids=["expected", "a bug"])
async def test_a_store_that_fails_makes_prompts_cold(error: Exception):
    store, inner = Store(), Inner()
    store.error = error
    store.can_go_on.set()
    port = FetchingPort(inner, store)
    port.post(submit("a"))
    await inner.until(1)
    assert names(inner) == ["Submit a"]


async def test_at_the_end_what_is_read_is_dropped_and_the_store_closed_after_the_engine():
    store, inner = Store(), Inner()
    port = FetchingPort(inner, store)
    port.post(submit("a"))
    await asyncio.to_thread(store.is_reading.wait, LONG_S)
    port.post(Abort("a"))
    port.stop()
    assert inner.is_stopped and store.closed is None
    store.can_go_on.set()
    await asyncio.sleep(0)
    assert port.join(1.0) and store.closed == (fetching_port.FLUSH_S, True)
    assert not port.join(0.0) and store.closed == (fetching_port.FLUSH_S, False)
    assert names(inner) == []
