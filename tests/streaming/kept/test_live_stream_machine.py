"""Streams, readers and their keeper against a small model: every token once, pauses exactly as the rule says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.contract.errors import EngineFailed, RateLimitExceeded, StreamNotFound
from app.contract.events import Finished, TokenDelta
from app.streaming.flow.flow_window import Watermarks
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import MAX_READERS, STREAM_BYTES, LiveStream
from app.streaming.kept.stream_reader import StreamReader
from tests.streaming.kept.live_engine import LateCalls, LiveEngine, delta, failed, finished, live_stream, read_now

MARKS = Watermarks(high_tokens=6, low_tokens=2)
MAX_BYTES = 4 * (STREAM_BYTES + 400)


@dataclass
class ModelReader:
    """A reader: what it was told at first, what it has read, what of that is delivered, and whether it lags."""

    reader: StreamReader
    after: list[int]
    read: list[list[int]]
    text: list[str]
    delivered: int = 0
    is_slow: bool = False
    ends: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def num_read(self) -> int:
        pairs = zip(self.read, self.after, strict=True)
        return sum(max(0, len(read) - after) for read, after in pairs)


@dataclass
class ModelStream:
    """A stream: the texts of each choice's tokens, and what has ended."""

    stream: LiveStream
    texts: list[list[str]]
    readers: list[ModelReader] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    is_failed: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_failed or len(self.ends) == len(self.texts)

    def judge(self) -> None:
        """Update the lags; a reader that lags is dropped with that policy."""
        told = sum(map(len, self.texts))
        for one in [*self.readers]:
            undelivered = told - sum(one.after) - one.delivered
            one.is_slow = undelivered > 2 if one.is_slow else undelivered >= 6
            if one.is_slow and self.stream.slow_reader is SlowReader.DROP:
                self.readers.remove(one)
                one.is_over = True

    @property
    def is_paused(self) -> bool:
        is_lagging = bool(self.readers) and all(one.is_slow for one in self.readers)
        return is_lagging and not self.is_over and self.stream.slow_reader is SlowReader.PAUSE


class LiveStreams(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine, self.timers = LiveEngine(), LateCalls()
        self.kept = KeptStreams(MAX_BYTES, call_later=self.timers)
        self.models: dict[str, ModelStream] = {}
        self.num_started = 0

    def pick(self, data: st.DataObject) -> ModelStream:
        return self.models[data.draw(st.sampled_from(sorted(self.models)))]

    def attach(self, model: ModelStream, after: list[int]) -> None:
        reader = StreamReader(model.stream, after, MARKS)
        if len(model.readers) == MAX_READERS:
            with pytest.raises(RateLimitExceeded):
                reader.open()
            return
        reader.open()
        model.readers.append(ModelReader(reader, after, [[] for _ in after], ["" for _ in after]))
        model.judge()

    @rule(n=st.integers(1, 2), policy=st.sampled_from(SlowReader), tenant=st.sampled_from(["a", "b"]))
    def start(self, n: int, policy: SlowReader, tenant: str) -> None:
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
            model.stream.cancel()
        elif not model.is_over:
            model.judge()
            self.engine.put(model.stream.id, failed(model.stream.id, EngineFailed("The step raised an exception.")))
        model.is_failed |= not model.is_over

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        model = self.pick(data)
        assert self.kept.find(model.stream.id, model.stream.tenant) is model.stream
        self.attach(model, [data.draw(st.integers(0, len(texts))) for texts in model.texts])

    @precondition(lambda self: any(model.readers for model in self.models.values()))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        model, one = self.pick_reader(data)
        one.delivered = one.num_read
        model.judge()
        for event in read_now(one.reader):
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
            assert (one.reader.error is not None) == model.is_failed

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
TestLiveStreams.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
