"""Streams, readers and their keeper against a small model: every token once, pauses exactly as the rule says."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.contract.errors import EngineFailed, IdempotencyConflict, RateLimitExceeded, StreamNotFound
from app.contract.events import EngineEvent, Finished, FinishReason, TokenDelta
from app.streaming.flow.delta_buffer import TOKEN_BYTES
from app.streaming.flow.flow_window import Credit, Lag, Watermarks
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.kept.idempotency_keys import KeyName
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import CHOICE_BYTES, MAX_READERS, STREAM_BYTES, LiveStream
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.waiting_reader import WaitingReader
from tests.cases import examples
from tests.streaming.kept.live_engine import LateCalls, LiveEngine, delta, failed, finished, live_stream, read_now

Result = TypeVar("Result")
MARKS = Watermarks(high_tokens=6, low_tokens=2, full_bytes=160)
MAX_BYTES = 4 * (STREAM_BYTES + 2 * CHOICE_BYTES)


@dataclass
class ModelReader:
    """A reader: what it was told at first, what it has read, up to where it was delivered, and how far it
    lags.

    One with `credit` polls, and has what was told before `after`.
    """

    reader: WaitingReader | PollingReader
    after: list[int]
    read: list[list[int]]
    text: list[str]
    delivered: list[int]
    lag: Lag = Lag.NONE
    ends: list[int] = field(default_factory=list)
    is_over: bool = False
    credit: Credit | None = None
    has_caught_up: bool = False

    def deliver(self) -> None:
        self.delivered = [max(len(read), after) for read, after in zip(self.read, self.after, strict=True)]

    def note(self, undelivered: list[str]) -> None:
        num_tokens, num_bytes = len(undelivered), sum(TOKEN_BYTES + len(text.encode()) for text in undelivered)
        if num_bytes >= 160 or (self.lag is Lag.FULL and num_bytes > 80):
            self.lag = Lag.FULL
        elif num_tokens >= 6 or (self.lag and num_tokens > 2):
            self.lag = Lag.SLOW
        else:
            self.lag = Lag.NONE


@dataclass
class ModelStream:
    """A stream: the texts of each choice's tokens, and what has ended."""

    stream: LiveStream
    texts: list[list[str]]
    readers: list[ModelReader] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    is_failed: bool = False
    is_cancelled: bool = False
    key: tuple[KeyName, bytes] | None = None

    @property
    def is_over(self) -> bool:
        return self.is_failed or len(self.ends) == len(self.texts)

    def judge(self) -> None:
        """Update the lags; with that policy a reader that lags is dropped, once it has been without."""
        for one in [*self.readers]:
            pairs = zip(self.texts, one.delivered, strict=True)
            one.note([text for texts, position in pairs for text in texts[position:]])
            one.has_caught_up |= not one.lag
            is_slow = one.lag and one.has_caught_up and not self.is_over
            if is_slow and self.stream.slow_reader is SlowReader.DROP:
                self.readers.remove(one)
                one.is_over = True

    @property
    def is_paused(self) -> bool:
        least = Lag.FULL if self.stream.slow_reader is SlowReader.COALESCE else Lag.SLOW
        return bool(self.readers) and not self.is_over and all(one.lag >= least for one in self.readers)


def now(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of work that does not wait."""
    with pytest.raises(StopIteration) as found:
        work.send(None)
    result: Result = found.value.value
    return result


def poll_now(reader: PollingReader) -> list[EngineEvent]:
    """What a reader that polls can read."""
    found = []
    while (event := reader.poll()) is not None and not reader.error:
        found.append(event)
    assert not reader.has_more or reader.error or reader.lacks_credit
    return found


class LiveStreams(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine, self.timers = LiveEngine(), LateCalls()
        self.kept = KeptStreams(MAX_BYTES, call_later=self.timers)
        self.models: dict[str, ModelStream] = {}
        self.num_started = 0

    def pick(self, data: st.DataObject) -> ModelStream:
        return self.models[data.draw(st.sampled_from(sorted(self.models)))]

    def attach(self, model: ModelStream, after: list[int], credit: int | None = None) -> None:
        if credit is None:
            reader, nothing = WaitingReader(model.stream, after, MARKS), [[] for _ in after]
            one = ModelReader(reader, after, nothing, ["" for _ in after], [*after])
        else:
            own = Credit(credit)
            reader = PollingReader(model.stream, after, MARKS, credit=own, on_ready=lambda: None)
            texts = ["".join(texts[:number]) for number, texts in zip(after, model.texts, strict=True)]
            read = [[*range(1, number + 1)] for number in after]
            one = ModelReader(reader, after, read, texts, [*after], credit=own)
        if len(model.readers) == MAX_READERS:
            with pytest.raises(RateLimitExceeded):
                one.reader.open()
            return
        one.reader.open()
        model.readers.append(one)
        model.judge()

    @rule(
        n=st.integers(1, 2),
        policy=st.sampled_from(SlowReader),
        tenant=st.sampled_from(["a", "b"]),
        body=st.none() | st.sampled_from([b"1", b"2"]),
    )
    def start(self, n: int, policy: SlowReader, tenant: str, body: bytes | None) -> None:
        """Start a stream, with a `body` under the tenant's one key, whose stream may be there already."""
        if body is None:
            return self.start_new(n, policy, tenant)
        name = KeyName(tenant, "/route", "key")
        keyed = [model for model in self.models.values() if model.key is not None and model.key[0] == name]
        assert len(keyed) <= 1
        if keyed and keyed[0].key != (name, body):
            with pytest.raises(IdempotencyConflict):
                now(self.claim(name, body))
        elif keyed:
            assert now(self.claim(name, body)) is keyed[0].stream
        else:
            now(self.claim(name, body, lambda: self.start_new(n, policy, tenant)))
            if (model := self.models.get(f"r{self.num_started}")) is not None:
                model.key = name, body
        return None

    async def claim(self, name: KeyName, body: bytes, start: Callable[[], None] = lambda: None) -> LiveStream | None:
        async with self.kept.keys.claimed(name, body) as answer:
            if answer.stream is None:
                start()
                if (model := self.models.get(f"r{self.num_started}")) is not None:
                    self.kept.keys.keep(name, model.stream)
            return answer.stream

    def start_new(self, n: int, policy: SlowReader, tenant: str) -> None:
        self.num_started += 1
        stream = live_stream(self.engine, f"r{self.num_started}", tenant=tenant, n=n, slow_reader=policy)
        had_room = self.kept.num_bytes + stream.num_bytes <= MAX_BYTES // 2
        if self.kept.keep(stream):
            model = self.models[stream.id] = ModelStream(stream, [[] for _ in range(n)])
            stream.start()
            self.attach(model, [0] * n)
        else:
            assert not had_room

    @precondition(lambda self: self.models)
    @rule(data=st.data(), text=st.sampled_from(["x", "", "é猫"]), size=st.integers(1, 3))
    def put(self, data: st.DataObject, text: str, size: int) -> None:
        model = self.pick(data)
        choice = data.draw(st.integers(0, len(model.texts) - 1))
        texts, stream = model.texts[choice], model.stream
        if model.is_over or choice in model.ends:
            return
        model.judge()
        self.engine.put(stream.id, delta(stream.id, len(texts) + 1, text, choice=choice, size=size))
        texts += [""] * (size - 1) + [text]

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        model = self.pick(data)
        choice = data.draw(st.integers(0, len(model.texts) - 1))
        if model.is_over or choice in model.ends:
            return
        model.judge()
        model.ends.add(choice)
        self.engine.put(model.stream.id, finished(model.stream.id, choice))

    @precondition(lambda self: self.models)
    @rule(data=st.data(), how=st.sampled_from(["cancel", "fail"]))
    def stop(self, data: st.DataObject, how: str) -> None:
        model = self.pick(data)
        if how == "cancel":
            model.is_cancelled |= not model.is_over
            model.stream.cancel()
        elif not model.is_over:
            model.judge()
            self.engine.put(model.stream.id, failed(model.stream.id, EngineFailed("The step raised an exception.")))
        model.is_failed |= not model.is_over

    @precondition(lambda self: any(model.is_cancelled for model in self.models.values()))
    @rule()
    def report_the_ends_of_cancelled_streams(self) -> None:
        for model in self.models.values():
            if model.is_cancelled and not model.stream.is_settled:
                open_choices = {*range(len(model.texts))} - model.ends
                ends = [finished(model.stream.id, choice, FinishReason.CANCELLED) for choice in open_choices]
                model.judge()
                self.engine.put(model.stream.id, *ends)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), credit=st.none() | st.integers(0, 8))
    def come_back(self, data: st.DataObject, credit: int | None) -> None:
        model = self.pick(data)
        assert self.kept.find(model.stream.id, model.stream.tenant) is model.stream
        self.attach(model, [data.draw(st.integers(0, len(texts))) for texts in model.texts], credit)

    @precondition(lambda self: any(model.readers for model in self.models.values()))
    @rule(data=st.data(), upto=st.integers(0, 40))
    def grant(self, data: st.DataObject, upto: int) -> None:
        _, one = self.pick_reader(data)
        if one.credit is not None:
            one.credit.grant([upto] * len(one.after))

    @precondition(lambda self: any(model.readers for model in self.models.values()))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        model, one = self.pick_reader(data)
        self.deliver(model, one)
        events = read_now(one.reader) if one.credit is None else poll_now(one.reader)
        for event in events:
            if isinstance(event, TokenDelta):
                read, after = one.read[event.choice], one.after[event.choice]
                assert event.first == len(read) + 1
                assert not len(read) < after < len(read) + len(event.token_ids), "a delta on both sides of `after`"
                read += event.token_ids
                one.text[event.choice] += event.text
            elif isinstance(event, Finished):
                assert len(one.read[event.choice]) == len(model.texts[event.choice])
                one.ends.append(event.choice)
        for read, text, texts in zip(one.read, one.text, model.texts, strict=True):
            assert read == [*range(1, len(read) + 1)]
            assert "".join(texts[: len(read)]) == text
        if one.reader.is_finished:
            assert all(len(read) == len(texts) for read, texts in zip(one.read, model.texts, strict=True))
            is_told = model.is_cancelled and one.credit is not None
            assert (one.reader.error is not None) == (model.is_failed and not is_told)
        if one.credit is not None:
            self.deliver(model, one)
            self.check_credit(model, one)

    def deliver(self, model: ModelStream, one: ModelReader) -> None:
        """What was read is delivered; a reader that does not lag, or has taken nothing, changes nothing by it."""
        before = one.delivered
        one.deliver()
        if one.lag and one.delivered != before:
            model.judge()

    def check_credit(self, model: ModelStream, one: ModelReader) -> None:
        """A reader that polls has all that its credit allows, and the end of each choice that it has all of."""
        assert one.credit is not None
        waits = model.is_cancelled and not model.stream.is_settled
        for choice, (read, after) in enumerate(zip(one.read, one.after, strict=True)):
            num_told = len(model.texts[choice])
            assert len(read) == max(after, min(num_told, one.credit.upto(choice)))
            has_end = choice in model.ends or (model.is_cancelled and not waits)
            assert (choice in one.ends) == (has_end and len(read) == num_told)
        has_all = all(len(read) == len(texts) for read, texts in zip(one.read, model.texts, strict=True))
        assert one.reader.is_finished == (has_all and model.is_over and not waits)
        assert one.reader.lacks_credit == (not has_all)

    @precondition(lambda self: any(model.readers for model in self.models.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        model, one = self.pick_reader(data)
        one.reader.close()
        model.readers.remove(one)
        model.judge()

    @rule()
    def wait_for_ttl(self) -> None:
        unread = [model for model in self.models.values() if not model.readers]
        self.timers.fire()
        for model in unread:
            assert model.stream.is_over
            del self.models[model.stream.id]
            for tenant in ("a", "b"):
                with pytest.raises(StreamNotFound):
                    self.kept.find(model.stream.id, tenant)

    def pick_reader(self, data: st.DataObject) -> tuple[ModelStream, ModelReader]:
        read = sorted(name for name, model in self.models.items() if model.readers)
        model = self.models[data.draw(st.sampled_from(read))]
        return model, model.readers[data.draw(st.integers(0, len(model.readers) - 1))]

    @invariant()
    def only_ended_streams_without_readers_are_evicted(self) -> None:
        for name, model in [*self.models.items()]:
            if model.stream.keeper is None:
                assert model.is_over
                assert not model.readers
                del self.models[name]
        assert len(self.kept) == len(self.models)
        assert len(self.kept.keys) == sum(model.key is not None for model in self.models.values())
        assert self.kept.num_bytes == sum(model.stream.num_bytes for model in self.models.values())

    @invariant()
    def requests_pause_as_the_rule_says(self) -> None:
        for model in self.models.values():
            assert len(model.stream.readers) == len(model.readers)
            if not model.is_over:
                assert (model.stream.id in self.engine.paused) == model.is_paused == model.stream.is_paused

    @invariant()
    def a_foreign_key_finds_nothing(self) -> None:
        for model in self.models.values():
            for tenant in {"a", "b", None} - {model.stream.tenant}:
                with pytest.raises(StreamNotFound):
                    self.kept.find(model.stream.id, tenant)


TestLiveStreams = LiveStreams.TestCase
TestLiveStreams.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
