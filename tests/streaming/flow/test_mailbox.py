"""A mailbox delivers every byte once and in order, however slow its reader is."""

import asyncio
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.contract.events import EngineEvent, Finished, RequestFailed, TokenDelta
from app.streaming.flow.delta_buffer import TOKEN_BYTES
from app.streaming.flow.flow_window import AccountBytes
from app.streaming.flow.mailbox import Mailbox
from tests.cases import examples
from tests.own_process import in_own_process
from tests.streaming.flow.events import ERROR, delta, finished


def text_by_choice(events: list[EngineEvent]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, TokenDelta):
            texts[event.choice] = texts.get(event.choice, "") + event.text
    return texts


def ids_by_choice(events: list[EngineEvent]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, TokenDelta):
            ids.setdefault(event.choice, []).extend(event.token_ids)
    return ids


async def put_and_get(events: list[EngineEvent], num_choices: int = 1) -> list[EngineEvent]:
    """Put all of `events` into a mailbox; return what a reader gets then."""
    mailbox = Mailbox(num_choices)
    for event in events:
        mailbox.put(event)
    return await mailbox.get() if events else []


async def test_pending_deltas_are_merged():
    pending = AccountBytes()
    mailbox = Mailbox(pending=pending)
    for event in (delta(1, "a"), delta(2, "é"), delta(3, "\r\n")):
        mailbox.put(event)
    assert (mailbox.num_merged, pending.num_bytes) == (2, 5 + 3 * TOKEN_BYTES)
    assert await mailbox.get() == [delta(1, "aé\r\n", count=3)]
    assert (mailbox.num_merged, pending.num_bytes) == (2, 0)
    mailbox.put(delta(4, "b"))
    assert await mailbox.get() == [delta(4, "b")]


async def test_a_slow_reader_gets_one_delta_per_choice():
    events = [delta(1, "a"), delta(1, "x", 1), finished(2), delta(2, "b"), delta(2, "y", 1), finished(1), delta(3, "c")]
    assert await put_and_get([*events, finished(0)], 3) == [
        finished(2), delta(1, "abc", count=3), finished(0), delta(1, "xy", 1, count=2), finished(1),
    ]  # fmt: skip


def bytes_of_2000_pending_tokens() -> tuple[int, int]:
    """As they are counted, and as Python holds them."""
    pending = AccountBytes()
    mailbox = Mailbox(pending=pending)
    tracemalloc.start()
    for number in range(1, 2001):
        mailbox.put(TokenDelta("r", 0, number, (40_000 + number,), f" {number:06}"))
    return pending.num_bytes, tracemalloc.get_traced_memory()[0]


def test_a_pending_token_takes_few_bytes():
    counted, held = in_own_process(bytes_of_2000_pending_tokens)
    assert counted == 2000 * (7 + TOKEN_BYTES)
    assert held < 50_000  # as deltas 507 KB


async def test_merged_deltas_have_one_logprob_per_token():
    first, second = delta(1, "a", logprobs=True), delta(2, "b", logprobs=True)
    (merged,) = await put_and_get([first, second])
    assert list(merged.logprobs) == [*first.logprobs, *second.logprobs]


async def test_get_waits_for_the_first_event():
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(delta(1, "a"))
    assert await reader == [delta(1, "a")]


async def test_a_stream_ends_with_its_last_choice():
    mailbox = Mailbox(2)
    mailbox.put(finished(1))
    assert (mailbox.is_complete, mailbox.num_open_choices) == (False, 1)
    mailbox.put(finished(0))
    assert (mailbox.is_complete, mailbox.num_open_choices) == (True, 0)
    assert await mailbox.get() == [finished(1), finished(0)]
    assert await mailbox.get() == []
    assert await mailbox.get() == []


async def test_a_failure_ends_all_choices():
    mailbox = Mailbox(2)
    mailbox.put(RequestFailed("r", ERROR))
    mailbox.put(RequestFailed("r", ERROR))
    mailbox.put(delta(1, "late"))
    mailbox.put(finished(1))
    assert await mailbox.get() == [RequestFailed("r", ERROR)]
    assert await mailbox.get() == []


async def test_no_event_follows_the_end_of_a_choice():
    mailbox = Mailbox(2)
    mailbox.put(finished(0))
    mailbox.put(finished(0))
    mailbox.put(delta(1, "late"))
    assert await mailbox.get() == [finished(0)]


async def test_a_cancelled_get_loses_nothing():
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(delta(1, "a"))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.get() == [delta(1, "a")]


async def test_close_drops_pending_events_and_wakes_the_reader():
    pending = AccountBytes()
    mailbox = Mailbox(pending=pending)
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.close()
    mailbox.close()
    mailbox.put(delta(1, "a"))
    assert await reader == []
    assert pending.num_bytes == 0


async def test_a_closed_mailbox_notes_the_end_of_its_request():
    mailbox = Mailbox()
    mailbox.close()
    mailbox.put(finished())
    assert mailbox.is_complete
    assert await mailbox.get() == []


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=5), st.integers(0, 3), st.booleans()), max_size=30))
def test_merging_keeps_bytes_and_numbers_of_every_choice(pieces: list[tuple[int, str, int, bool]]):
    events: list[EngineEvent] = []
    numbers = dict.fromkeys(range(3), 1)
    ended: set[int] = set()
    for choice, text, count, ends in pieces:
        if choice in ended:
            continue
        events.append(delta(numbers[choice], text, choice, count, logprobs=choice == 1))
        numbers[choice] += count
        if ends:
            ended.add(choice)
            events.append(finished(choice))
    merged = asyncio.run(put_and_get(events, 3))
    assert text_by_choice(merged) == text_by_choice(events)
    assert ids_by_choice(merged) == ids_by_choice(events)
    assert sorted(event.choice for event in merged if isinstance(event, Finished)) == sorted(ended)
    assert sum(len(event.logprobs or ()) for event in merged if isinstance(event, TokenDelta)) == numbers[1] - 1
    expected = dict.fromkeys(range(3), 1)
    for event in merged:
        if isinstance(event, TokenDelta):
            assert event.first == expected[event.choice]
            expected[event.choice] += len(event.token_ids)
            assert event.choice not in ended or merged.index(finished(event.choice)) > merged.index(event)


class MailboxMachine(RuleBasedStateMachine):
    """put, get, cancelled get and close in any order, compared with the text sent and received."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pending = AccountBytes()
        self.mailbox = Mailbox(pending=self.pending)
        self.sent = self.received = ""
        self.num_received = 0
        self.next_number = 1
        self.terminals = 0
        self.is_ended = self.is_closed = False

    @rule(text=st.text(max_size=4), count=st.integers(1, 3))
    def put_delta(self, text: str, count: int):
        self.mailbox.put(delta(self.next_number, text, count=count))
        if not self.is_ended:
            self.next_number += count
            self.sent += text

    @rule(event=st.sampled_from([finished(), RequestFailed("r", ERROR)]))
    def put_end(self, event: EngineEvent):
        self.mailbox.put(event)
        self.is_ended = True

    @rule()
    def cancelled_get(self):
        reader = self.loop.create_task(self.mailbox.get())
        reader.cancel()
        self.loop.run_until_complete(asyncio.wait([reader]))

    @precondition(lambda self: self.pending.num_bytes or self.is_ended or self.is_closed)
    @rule()
    def get(self):
        for event in self.loop.run_until_complete(asyncio.wait_for(self.mailbox.get(), 30)):
            if isinstance(event, TokenDelta):
                self.received += event.text
                self.num_received += len(event.token_ids)
            else:
                self.terminals += 1

    @rule()
    def close(self):
        self.mailbox.close()
        self.is_closed = True

    @invariant()
    def the_reader_has_a_prefix_of_the_sent_text(self):
        assert self.sent.startswith(self.received)
        assert self.terminals <= 1
        assert self.mailbox.is_complete == self.is_ended
        num_waiting = self.next_number - 1 - self.num_received
        size = len(self.sent[len(self.received) :].encode()) + TOKEN_BYTES * num_waiting
        assert self.pending.num_bytes == (0 if self.is_closed else size)

    def teardown(self):
        self.loop.close()


MailboxMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30)
TestMailboxMachine = MailboxMachine.TestCase
