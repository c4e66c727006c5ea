"""A client that connects again: its answers go on where they were, with every token once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.client.client import ChatClient, ClientAnswer, connect
from app.client.comeback import Backoff
from app.client.opening import ConnectionLost, ServerRefused
from app.client.protocol import ChatEvent
from app.contract.events import ChoiceEnd, FinishReason
from app.streaming.kept.live_stream import MAX_READERS
from app.streaming.kept.waiting_reader import WaitingReader
from tests.api.serving import HANG_S, make_app, serving, until
from tests.client.relay import Relay
from tests.fakes import FakeEngine, Script, text_of

MESSAGES = [{"role": "user", "content": "Hello"}]
QUICK = Backoff(first_s=0.001, last_s=0.01, give_up_s=HANG_S)
PIECES = ["On", "ce ", "up", "on ", "a ", "time ", "th", "ere ", "was."]


@asynccontextmanager
async def relayed(engine: FakeEngine, **settings: object) -> AsyncIterator[tuple[Relay, ChatClient]]:
    """A client that comes back quickly, and the relay between it and the server."""
    async with (
        asyncio.timeout(HANG_S),
        serving(await make_app(engine, **settings)) as url,
        Relay(url).running() as relay,
        connect(relay.url, reconnect=QUICK) as client,
    ):
        yield relay, client


class Reading:
    """Reads an answer in a task.

    Attributes:
        events: what has come.
        done: the task.
    """

    def __init__(self, answer: ClientAnswer) -> None:
        self.events: list[ChatEvent] = []
        self.done = asyncio.create_task(self._read(answer))

    def numbers(self, choice: int = 0) -> list[int]:
        """The numbers of the tokens of a choice, in the order in which they came."""
        own = [event for event in self.events if event.choice == choice]
        return [number for event in own for number in range(event.first, event.first + event.num_tokens)]

    async def until(self, num_tokens: int) -> None:
        """Wait for so many tokens of the first choice, or the end."""
        await until(lambda: self.done.done() or len(self.numbers()) >= num_tokens)

    async def _read(self, answer: ClientAnswer) -> None:
        async for event in answer.events():
            self.events += [event]


async def accepted(answer: ClientAnswer) -> None:
    """Wait until the server has accepted a request."""
    await until(lambda: answer.stream_id is not None)


async def test_every_token_comes_once_wherever_the_connection_is_cut() -> None:
    engine = FakeEngine(Script(answer=PIECES), held=True)
    async with relayed(engine) as (relay, client):
        for number in range(len(PIECES)):
            answer = await client.chat(MESSAGES, logprobs=True)
            reading = Reading(answer)
            await accepted(answer)
            engine.step(number)
            await reading.until(number)
            relay.cut()
            engine.step(len(PIECES) + 1)  # while the client is away
            await reading.done
            assert reading.numbers() == [*range(1, len(PIECES) + 1)], f"cut behind token {number}"
            assert "".join(event.text for event in reading.events) == "".join(PIECES)
            assert sum(len(event.logprobs or ()) for event in reading.events) == len(PIECES)
            assert answer.ends == {0: ChoiceEnd(FinishReason.STOP)}
    assert relay.num_accepted == 1 + len(PIECES)
    assert engine.aborted == []


async def test_each_choice_goes_on_behind_its_own_last_token() -> None:
    engine = FakeEngine(Script(others=[["x"] * 30]))
    async with relayed(engine) as (relay, client):
        answer = await client.chat(MESSAGES, n=2, max_tokens=600)
        reading = Reading(answer)
        for count in (1, 200, 400):
            await reading.until(count)
            relay.cut()
        await reading.done
    assert reading.numbers() == [*range(1, 601)]
    assert reading.numbers(1) == [*range(1, 31)]


async def test_an_unread_answer_buffers_one_window_also_after_a_cut() -> None:
    engine = FakeEngine()
    async with relayed(engine) as (relay, client):
        answer = await client.chat(MESSAGES, max_tokens=1900)
        await until(lambda: answer.is_paused)
        relay.cut()
        await until(lambda: relay.num_accepted == 2 and client.welcome)
        window = client.welcome["limits"]["window"]
        await until(lambda: answer.is_paused)
        await answer.cancel()
        assert await answer.text() == text_of(engine.requests[0].prompt_token_ids, window)


async def test_an_answer_that_is_asked_for_while_the_connection_is_away_comes_later() -> None:
    engine = FakeEngine()
    async with relayed(engine) as (relay, client):
        relay.is_away = True
        relay.cut()
        await until(lambda: relay.num_accepted > 2)
        asking = asyncio.create_task(client.chat(MESSAGES, max_tokens=5))
        relay.is_away = False
        assert await (await asking).text() == text_of(engine.requests[0].prompt_token_ids, 5)


async def test_a_request_whose_connection_is_cut_at_once_is_answered_once() -> None:
    engine = FakeEngine()
    async with relayed(engine) as (relay, client):
        answer = await client.chat(MESSAGES, max_tokens=5)
        relay.cut()
        reading = Reading(answer)
        await reading.done
    assert reading.numbers() == [1, 2, 3, 4, 5]
    assert len(engine.requests) == 1


async def test_an_answer_that_nobody_has_read_goes_on_when_somebody_reads() -> None:
    engine = FakeEngine()
    async with relayed(engine, stall_timeout=0.2) as (relay, client):
        answer = await client.chat(MESSAGES, max_tokens=1900)
        await until(lambda: not client.welcome)  # it was disconnected with 4499
        assert relay.num_accepted == 1
        assert await answer.text() == text_of(engine.requests[0].prompt_token_ids, 1900)
    assert client.loss.close_code == 4499


async def test_a_cancel_that_was_lost_is_sent_again() -> None:
    engine = FakeEngine(held=True)
    async with relayed(engine) as (relay, client):
        answer = await client.chat(MESSAGES)
        await accepted(answer)
        relay.is_away = True
        relay.cut()
        await until(lambda: relay.num_accepted > 2)
        await answer.cancel()
        assert engine.aborted == []
        relay.is_away = False
        await answer.text()
    assert answer.ends == {0: ChoiceEnd(FinishReason.CANCELLED)}


async def test_a_cancel_before_the_request_was_accepted_ends_it_with_the_next_connection() -> None:
    engine = FakeEngine(held=True)
    async with relayed(engine) as (relay, client):
        relay.is_mute = relay.is_away = True
        answer = await client.chat(MESSAGES)
        await until(lambda: engine.requests)
        relay.cut()
        await until(lambda: relay.num_accepted > 2)
        await answer.cancel()
        assert engine.aborted == []
        relay.is_mute = relay.is_away = False
        assert await answer.text() == ""
    assert answer.ends == {0: ChoiceEnd(FinishReason.CANCELLED)}
    assert engine.aborted == [request.id for request in engine.requests]
    assert len(engine.requests) == 1


async def test_an_answer_with_too_many_readers_goes_on_when_one_of_them_has_gone() -> None:
    engine = FakeEngine(Script(answer=PIECES), held=True)
    app = await make_app(engine)
    async with (
        asyncio.timeout(HANG_S),
        serving(app) as url,
        Relay(url).running() as relay,
        connect(relay.url, reconnect=QUICK) as client,
    ):
        answer = await client.chat(MESSAGES)
        reading = Reading(answer)
        await accepted(answer)
        engine.step(2)
        await reading.until(2)
        relay.is_away = True
        relay.cut()
        stream = app.state.context.kept.find(answer.stream_id, None)
        await until(lambda: not stream.readers)
        # Connections that were lost, as far as the server knows.
        readers = [WaitingReader(stream) for _ in range(MAX_READERS)]
        for reader in readers:
            reader.open()
        relay.is_away = False
        await until(lambda: answer.num_refused >= 3)
        engine.release()
        readers[0].close()
        await reading.done
        for reader in readers[1:]:
            reader.close()
    assert reading.numbers() == [*range(1, len(PIECES) + 1)]
    assert answer.ends == {0: ChoiceEnd(FinishReason.STOP)}


async def test_the_end_of_the_block_cancels_also_while_the_connection_is_away() -> None:
    engine = FakeEngine(held=True)
    async with asyncio.timeout(HANG_S), serving(await make_app(engine)) as url, Relay(url).running() as relay:

        async def come_back() -> None:
            relay.is_away = False

        async with connect(relay.url, reconnect=QUICK) as client:
            answer = await client.chat(MESSAGES)
            await accepted(answer)
            relay.is_away = True
            relay.cut()
            await until(lambda: relay.num_accepted > 2)
            coming = asyncio.create_task(come_back())  # at the first wait of the block's end
        await coming
        await until(lambda: engine.aborted == [engine.requests[0].id])


async def test_the_end_of_the_block_cancels_what_the_server_would_keep() -> None:
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connect(url, reconnect=True) as client:
            answer = await client.chat(MESSAGES)
            await accepted(answer)
        await until(lambda: len(engine.aborted) == 1)


async def test_a_server_that_was_started_again_has_forgotten_the_answer() -> None:
    engine = FakeEngine(held=True)
    async with relayed(engine) as (relay, client), serving(await make_app(FakeEngine())) as other:
        answer = await client.chat(MESSAGES)
        await accepted(answer)
        relay.pass_to(other)
        relay.cut()
        with pytest.raises(ServerRefused) as refused:
            await answer.text()
        assert refused.value.code == "stream_not_found"
        assert await (await client.chat(MESSAGES, max_tokens=2)).text()


async def test_a_connection_that_does_not_come_back_is_given_up() -> None:
    engine = FakeEngine(held=True)
    backoff = Backoff(first_s=0.001, last_s=0.01, give_up_s=0.2)
    async with (
        asyncio.timeout(HANG_S),
        serving(await make_app(engine)) as url,
        Relay(url).running() as relay,
        connect(relay.url, reconnect=backoff) as client,
    ):
        answer = await client.chat(MESSAGES)
        relay.is_away = True
        relay.cut()
        with pytest.raises(ConnectionLost, match="There was no other one for") as lost:
            await answer.text()
        assert lost.value.close_code == 1006
        with pytest.raises(ConnectionLost):
            await client.chat(MESSAGES)
        assert relay.num_accepted > 2


async def test_a_client_that_has_broken_the_protocol_does_not_come_back() -> None:
    engine = FakeEngine(held=True)
    async with relayed(engine) as (relay, client):
        answer = await client.chat(MESSAGES)
        await client.send({"t": 1})
        with pytest.raises(ConnectionLost, match="4400"):
            await answer.text()
    assert relay.num_accepted == 1
