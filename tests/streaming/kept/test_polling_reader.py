"""A reader that polls: what it gets with its credit, in which order, and how its stream ends for it."""

from __future__ import annotations

from typing import Any

from app.contract.errors import EngineFailed
from app.contract.events import EngineEvent, Finished, FinishReason, Phase, Progress, RequestFailed, TokenDelta
from app.streaming.flow.flow_window import Credit
from app.streaming.kept.polling_reader import PollingReader
from tests.streaming.kept.live_engine import LiveEngine, delta, failed, finished, live_stream


class Polling:
    """A stream, and a reader that polls it; `calls` are those of the reader."""

    def __init__(self, credit: int = 10**6, **settings: Any) -> None:
        self.engine, self.calls = LiveEngine(), []
        self.stream = live_stream(self.engine, **settings)
        self.stream.start()
        self.credit = Credit(credit)
        self.reader = self.another(credit=self.credit)

    def another(self, after: list[int] | None = None, credit: Credit | None = None) -> PollingReader:
        reader = PollingReader(
            self.stream,
            after,
            credit=credit,
            on_ready=lambda: self.calls.append("ready"),
            on_pause=lambda: self.calls.append("pause"),
            on_resume=lambda: self.calls.append("resume"),
        )
        reader.open()
        return reader

    def put(self, *events: EngineEvent) -> None:
        self.engine.put("r", *events)


def poll_all(reader: PollingReader) -> list[EngineEvent]:
    found = []
    while (event := reader.poll()) is not None:
        found.append(event)
    assert not reader.has_more
    return found


def parts(events: list[EngineEvent]) -> list[tuple[int, str]]:
    return [(event.first, event.text) for event in events if isinstance(event, TokenDelta)]


def test_tokens_wait_for_credit_and_their_text_comes_with_the_last_of_a_delta():
    polling = Polling(credit=0)
    polling.put(delta("r", 1, "ab", size=2), delta("r", 3, "c"))
    polling.put(finished("r"))
    assert poll_all(polling.reader) == []
    assert polling.reader.lacks_credit
    polling.credit.grant([1])
    assert parts(poll_all(polling.reader)) == [(1, "")]
    polling.credit.grant([3])
    assert not polling.reader.lacks_credit
    *deltas, end = poll_all(polling.reader)
    assert parts(deltas) == [(2, "abc")]
    assert isinstance(end, Finished)
    assert polling.reader.is_finished
    assert not polling.reader.lacks_credit


def test_a_tail_needs_no_credit_of_its_own():
    polling = Polling(credit=1)
    polling.put(delta("r", 1, "a"), delta("r", 2, "\ufffd", size=0), finished("r"))
    assert parts(poll_all(polling.reader)) == [(1, "a"), (2, "\ufffd")]
    assert parts(poll_all(polling.another([1]))) == [(2, "\ufffd")]
    assert parts(poll_all(polling.another([2]))) == []


def test_choices_take_turns():
    polling = Polling(n=3)
    polling.put(*(delta("r", 1, "x", choice=choice) for choice in range(3)))
    assert polling.reader.poll().choice == 0
    polling.put(delta("r", 2, "y"))
    assert [event.choice for event in poll_all(polling.reader)] == [1, 2, 0]


def test_what_was_told_before_is_only_told_to_parsers():
    polling = Polling(n=2)
    polling.put(delta("r", 1, "ab", size=2), delta("r", 3, "c"), delta("r", 1, "x", choice=1))
    late = polling.another([3, 0])
    assert [(event.choice, event.text) for event in late.retold()] == [(0, "abc")]
    assert [(event.choice, event.text) for event in poll_all(late)] == [(1, "x")]


def test_the_last_progress_is_told_and_to_later_readers_before_the_first_token():
    polling = Polling()
    queued, computed = Progress("r", Phase.QUEUED, 0, 9, ahead=1), Progress("r", Phase.PREFILL, 4, 9)
    polling.put(queued)
    assert poll_all(polling.reader) == [queued]
    polling.put(queued, computed)
    assert poll_all(polling.reader) == poll_all(polling.another()) == [computed]
    polling.put(delta("r", 1, "a"))
    assert parts(poll_all(polling.another())) == [(1, "a")]
    assert not any(isinstance(event, Progress) for event in poll_all(polling.another()))


def test_readers_hear_of_pauses_until_they_are_closed():
    polling = Polling(credit=0)
    for number in range(1, 194):
        polling.put(delta("r", number, "x"))
    assert polling.calls[-2:] == ["pause", "ready"]
    assert polling.reader.is_paused
    polling.credit.grant([193])
    poll_all(polling.reader)
    assert "resume" in polling.calls
    polling.reader.close()
    polling.calls.clear()
    polling.put(delta("r", 194, "x"))
    assert polling.calls == []


def test_who_cancels_gets_no_more_text_and_others_get_what_was_told():
    polling = Polling(n=2)
    other = polling.another()
    polling.put(delta("r", 1, "a"), delta("r", 1, "x", choice=1), finished("r", 1))
    polling.reader.cancel()
    polling.put(delta("r", 2, "late"), finished("r", 0, FinishReason.CANCELLED))
    ends = {event.choice: event.reason for event in poll_all(polling.reader)}
    assert ends == {0: "cancelled", 1: "cancelled"}
    *deltas, _, _ = events = poll_all(other)
    assert parts(deltas) == [(1, "a"), (1, "x")]
    assert {event.choice: event.reason for event in events if isinstance(event, Finished)} == {
        0: "cancelled",
        1: "stop",
    }
    for reader in (polling.reader, other):
        assert (reader.is_finished, reader.failure, reader.usage.completion_tokens) == (True, None, 2)
        assert reader.timings() is not None


def test_the_ends_of_a_cancelled_stream_wait_for_the_engine():
    polling = Polling()
    polling.stream.cancel()
    assert poll_all(polling.reader) == []
    polling.put(finished("r", 0, FinishReason.CANCELLED))
    assert [event.reason for event in poll_all(polling.reader)] == ["cancelled"]
    assert [event.reason for event in poll_all(polling.another())] == ["cancelled"]


def test_a_cancelled_stream_whose_engine_fails_ends_with_an_error():
    polling = Polling()
    polling.stream.cancel()
    polling.put(failed("r", EngineFailed("The engine has failed.")))
    (event,) = poll_all(polling.reader)
    assert isinstance(event, RequestFailed)
    assert polling.reader.failure.code == "stream_cancelled"


def test_a_failure_comes_behind_what_was_told():
    polling = Polling(credit=0)
    polling.put(delta("r", 1, "a"))
    polling.put(failed("r", EngineFailed("The step raised an exception.")))
    assert poll_all(polling.reader) == []
    polling.credit.grant([1])
    told, failure = poll_all(polling.reader)
    assert (told.text, failure.error.code) == ("a", "engine_error")
    assert (polling.reader.is_finished, polling.reader.failure) == (True, failure.error)
