"""Pending data is limited and delivered in pieces, so that no stream blocks the loop or fills the memory."""

import asyncio
import tracemalloc

import pytest

from app.contract.errors import Overloaded
from app.contract.events import ChoiceEnd, Finished, FinishReason, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs, row_bytes
from app.contract.requests import Pause, Resume
from app.streaming.flow.delta_buffer import PIECE_BYTES, TOKEN_BYTES
from app.streaming.flow.flow_window import Watermarks
from app.streaming.flow.mailbox import Mailbox
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.session import Session
from app.streaming.streams import Streams
from tests.fakes import FakeEngine, Script, make_request, turn_loop
from tests.own_process import in_own_process

MAX_BYTES = 256 * 1024
NUM_TOP = 20


def delta_with_logprobs(first: int, count: int, choice: int = 0) -> TokenDelta:
    """Tokens with the maximum number of log-probabilities."""
    ids = range(first, first + count)
    tokens = [TokenLogprobs(i, -1.0, 1, tuple(range(NUM_TOP)), (-1.0,) * NUM_TOP) for i in ids]
    return TokenDelta("r", choice, first, tuple(ids), "x" * count, Logprobs.of(tokens, NUM_TOP))


async def get_all(mailbox: Mailbox) -> list[list[TokenDelta]]:
    """The deltas of every `get`."""
    found = []
    while events := await mailbox.get():
        found.append([event for event in events if isinstance(event, TokenDelta)])
    return found


def test_20_log_probabilities_of_a_token_take_172_bytes():
    assert row_bytes(NUM_TOP) == 172
    packed = delta_with_logprobs(1, 3).logprobs
    assert [token.token_id for token in packed] == [1, 2, 3] and len(packed) == 3
    assert next(iter(packed)) == TokenLogprobs(1, -1.0, 1, tuple(range(NUM_TOP)), (-1.0,) * NUM_TOP)


@pytest.mark.parametrize("size", [1, 500])
async def test_many_log_probabilities_are_delivered_in_pieces_and_the_loop_runs_between(size):
    mailbox = Mailbox(2)
    for choice in (0, 1):
        for first in range(1, 1001, size):
            mailbox.put(delta_with_logprobs(first, size, choice))
        mailbox.put(Finished("r", choice, ChoiceEnd(FinishReason.STOP), Usage(1, 1000), Timings(0, 0, 0)))
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    found = await get_all(mailbox)
    ticking.cancel()
    assert all(sum(len(delta.logprobs.rows) for delta in deltas) <= 2 * PIECE_BYTES for deltas in found)
    assert turns >= len(found) - 3 >= 2000 * 172 / PIECE_BYTES / 2
    for choice in (0, 1):
        own = [delta for deltas in found for delta in deltas if delta.choice == choice]
        assert [i for delta in own for i in delta.token_ids] == list(range(1, 1001))
        assert [entry.token_id for delta in own for entry in delta.logprobs] == list(range(1, 1001))
        assert "".join(delta.text for delta in own) == "x" * 1000


async def test_a_coalescing_stream_pauses_below_256_kib_and_resumes_when_read():
    engine, streams = FakeEngine(), Streams()
    request = make_request(max_tokens=5000, logprobs=NUM_TOP)
    async with Session(engine, request, slow_reader=SlowReader.COALESCE, streams=streams) as session:
        while not session.is_paused:
            await turn_loop()
        await turn_loop(20)
        assert Watermarks().full_bytes <= streams.pending_bytes <= 1.1 * Watermarks().full_bytes
        steps = engine.port.steps
        await turn_loop(20)
        assert engine.port.steps == steps
        num_tokens = 0
        async for events in session:
            num_tokens += sum(len(event.token_ids) for event in events if isinstance(event, TokenDelta))
            assert streams.pending_bytes <= MAX_BYTES
    assert num_tokens == 5000
    commands = [type(command) for command in engine.port.posted if isinstance(command, (Pause, Resume))]
    assert commands[:2] == [Pause, Resume] and commands.count(Pause) == commands.count(Resume)
    assert streams.pending_bytes == 0


async def held_by_unread_streams(policy: SlowReader) -> tuple[int, int, int]:
    """The bytes of 40 streams: as they are counted, as Python holds them, and what is counted after their end."""
    engine, streams = FakeEngine(Script(max_num_seqs=40)), Streams()
    sessions = [
        Session(engine, make_request(str(i), max_tokens=2000, logprobs=NUM_TOP), slow_reader=policy, streams=streams)
        for i in range(40)
    ]
    tracemalloc.start()
    for session in sessions:
        session.open()
    while engine.port.has_work:
        await turn_loop()
    counted, held = streams.pending_bytes, tracemalloc.get_traced_memory()[0]
    for session in sessions:
        session.close()
    return counted, held, streams.pending_bytes


def measured(policy: SlowReader) -> tuple[int, int, int]:
    """See `held_by_unread_streams`."""
    return asyncio.run(held_by_unread_streams(policy))


@pytest.mark.parametrize("policy", SlowReader)
def test_an_unread_stream_takes_at_most_256_kib(policy):
    counted, held, left = in_own_process(measured, policy)
    assert counted <= 40 * MAX_BYTES
    assert held <= 40 * MAX_BYTES
    assert left == 0


async def test_new_requests_are_rejected_above_max_pending_bytes():
    engine, streams = FakeEngine(), Streams(max_pending_bytes=1000)
    session = Session(engine, make_request("a", max_tokens=100), streams=streams)
    session.open()
    while engine.port.has_work:
        await turn_loop()
    assert streams.pending_bytes > 1000
    with pytest.raises(Overloaded, match="--max-pending-bytes") as caught:
        Session(engine, make_request("b"), streams=streams).open()
    assert caught.value.http_status == 503
    assert len(engine.requests) == 1
    async with Session(engine, make_request("b", account="other"), streams=streams) as other:
        pass
    session.close()
    async with Session(engine, make_request("c", max_tokens=2), streams=streams) as other:
        async for _ in other:
            pass
    assert other.num_tokens == 2


def test_pending_bytes_of_all_streams_are_summed():
    streams = Streams()
    mailboxes = [Mailbox(pending=streams.pending_of("")) for _ in range(3)]
    for mailbox in mailboxes:
        streams.enter(mailbox)
        mailbox.put(TokenDelta("r", 0, 1, (5,), "é"))
    assert streams.pending_bytes == 3 * (2 + TOKEN_BYTES)
    mailboxes[0].poll()
    mailboxes[1].close()
    mailboxes[2].discard_text()
    assert streams.pending_bytes == 0
