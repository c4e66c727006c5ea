"""An answer belongs to its stream: readers come and go, and what leaving means is told here."""

import asyncio
from itertools import pairwise

import pytest

from app.contract.errors import Draining, EngineFailed, Overloaded, RateLimitExceeded
from app.contract.events import Finished, FinishReason, TokenDelta, Usage
from app.contract.grammar import Grammar, GrammarKind
from app.contract.requests import EngineRequest, ToldChoice
from app.contract.sampling_params import SamplingParams
from app.journal.entries import Delta
from app.streaming.flow.delta_buffer import PIECE_BYTES, TOKEN_BYTES
from app.streaming.flow.flow_window import Lag, Watermarks
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import HIGH_WAITING, LOW_WAITING, MAX_READERS, Ending, LiveStream, State
from app.streaming.kept.told_entries import columns_of
from app.streaming.kept.waiting_reader import WaitingReader
from app.streaming.streams import Streams
from tests.fakes import make_request
from tests.streaming.kept.live_engine import (
    LateCalls,
    LiveEngine,
    delta,
    failed,
    finished,
    live_stream,
    read_now,
)


def opened(stream: LiveStream, after: list[int] | None = None) -> WaitingReader:
    stream.start()
    reader = WaitingReader(stream, after)
    reader.open()
    return reader


def text_of(events: list) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenDelta))


def test_the_last_reader_that_leaves_aborts_nothing_and_the_next_one_goes_on():
    engine = LiveEngine()
    first = opened(stream := live_stream(engine))
    engine.put("r", delta("r", 1, "a"))
    assert text_of(read_now(first)) == "a"
    first.close()
    engine.put("r", delta("r", 2, "b"))
    engine.put("r", finished("r", num_tokens=2))
    assert engine.aborted == []
    second = opened(stream, [1])
    before, after, end = read_now(second)
    assert (before.text, after.text, after.first) == ("a", "b", 2)
    assert isinstance(end, Finished)
    assert (second.num_tokens, second.usage, second.end_reason) == (1, Usage(3, 2), "stop")
    assert (stream.state, second.is_finished, second.failure) == (State.FINISHED, True, None)


def test_several_prompts_are_one_stream_with_the_sums_of_their_usage():
    engine = LiveEngine()
    params = SamplingParams(max_tokens=4, n=2)
    requests = [EngineRequest(f"r-{index}", (1, 2, 3), params, 0.0) for index in range(2)]
    reader = opened(LiveStream(engine, requests, "r"))
    engine.put("r-1", delta("r-1", 1, "x", choice=1))
    (event,) = read_now(reader)
    assert (event.choice, event.request_id) == (3, "r")
    for request in requests:
        engine.put(request.id, finished(request.id, 0), finished(request.id, 1, num_tokens=2))
    assert sorted(event.choice for event in read_now(reader)) == [0, 1, 2, 3]
    assert reader.usage == Usage(6, 6)
    assert (reader.span().total_s, reader.num_prompt_tokens, reader.num_choices) == (2, 6, 4)


def test_one_failed_request_fails_the_answer_after_its_text_and_aborts_the_others():
    engine = LiveEngine()
    requests = [EngineRequest(f"r-{index}", (1,), SamplingParams(max_tokens=4), 0.0) for index in range(2)]
    reader = opened(stream := LiveStream(engine, requests, "r"))
    engine.put("r-0", delta("r-0", 1, "a"))
    engine.put("r-1", failed("r-1", EngineFailed("The step raised an exception.")))
    assert engine.aborted == ["r-0"]
    assert text_of(read_now(reader)) == "a"
    assert not reader.is_finished
    assert read_now(reader) == []
    assert reader.failure is not None
    assert (reader.failure.code, stream.state) == ("engine_error", State.FAILED)


def test_a_cancelled_stream_tells_all_its_readers_and_keeps_what_was_told():
    engine = LiveEngine()
    readers = [opened(stream := live_stream(engine))]
    readers.append(opened(stream))
    engine.put("r", delta("r", 1, "a"))
    stream.cancel()
    stream.cancel()
    engine.put("r", delta("r", 2, "late"))
    engine.put("r", finished("r", reason=FinishReason.CANCELLED))
    for reader in [*readers, opened(stream)]:
        assert text_of(read_now(reader)) == "a"
        assert read_now(reader) == []
        assert reader.error is not None
        assert reader.error.code == "stream_cancelled"
    assert (engine.aborted, stream.state, engine.sinks["r"].is_complete) == (["r"], State.CANCELLED, True)


def test_a_stream_that_the_end_of_the_server_cuts_fails_as_draining():
    engine = LiveEngine()
    reader = opened(live_stream(engine))
    engine.put("r", finished("r", reason=FinishReason.CANCELLED))
    assert read_now(reader) == []
    assert reader.failure is not None
    assert reader.failure.code == Draining.code


def test_a_ninth_reader_is_rejected_until_one_has_gone():
    stream = live_stream(LiveEngine())
    readers = [opened(stream) for _ in range(MAX_READERS)]
    with pytest.raises(RateLimitExceeded):
        opened(stream)
    readers[0].close()
    opened(stream)


def test_a_rejected_answer_is_not_kept_and_releases_what_it_needs():
    engine, released = LiveEngine(), []
    engine.rejection = Overloaded("The queue is full.")
    kept = KeptStreams(2**20, call_later=LateCalls())
    stream = live_stream(engine, release=lambda: released.append(1))
    assert kept.keep(stream)
    with pytest.raises(Overloaded):
        opened(stream)
    assert (len(kept), kept.num_bytes, released) == (0, 0, [1])


@pytest.mark.parametrize("how", ["ends", "is cancelled", "fails"])
def test_what_requests_need_is_released_once_when_they_have_ended(how: str):
    engine, released = LiveEngine(), []
    stream = live_stream(engine, release=lambda: released.append(1), grammar=Grammar(GrammarKind.REGEX, "a+"))
    reader = opened(stream)
    engine.put("r", delta("r", 1, "a"))
    reader.close()
    assert released == []
    assert stream.requests[0].grammar is not None
    if how == "ends":
        engine.put("r", finished("r"))
    elif how == "fails":
        engine.put("r", failed("r", EngineFailed("The step raised an exception.")))
    stream.cancel()
    assert released == [1]
    assert stream.requests[0].grammar is None


def test_a_stream_pauses_while_all_its_readers_lag_and_goes_on_without_them():
    engine, streams = LiveEngine(), Streams()
    slow = opened(stream := live_stream(engine, streams=streams))
    for number in range(1, 194):
        engine.put("r", delta("r", number, "x"))
    assert engine.paused == {"r"}
    quick = opened(stream, [193])
    assert engine.paused == set()
    quick.close()
    assert engine.paused == {"r"}
    slow.close()
    assert (engine.paused, engine.aborted, streams.slow_readers["pause"]) == (set(), [], 1)


async def test_with_coalesce_a_stream_pauses_only_where_nothing_more_may_be_pending():
    engine = LiveEngine()
    reader = opened(stream := live_stream(engine, slow_reader=SlowReader.COALESCE))
    marks, size = Watermarks(), 1000 - TOKEN_BYTES
    for number in range(1, marks.full_bytes // 1000 + 1):
        engine.put("r", delta("r", number, "x" * size))
    assert stream.num_tokens * 1000 > marks.high_bytes
    assert engine.paused == set()
    engine.put("r", delta("r", number + 1, "x" * 1000), delta("r", number + 2, "x" * 1000))
    engine.put("r", delta("r", number + 3, "x"))
    assert engine.paused == {"r"}
    while engine.paused:
        assert stream.told_bytes - reader._delivered_bytes > marks.full_bytes // 2
        await reader.receive()


def test_a_reader_that_lags_is_dropped_alone_where_the_request_says_so():
    engine = LiveEngine()
    slow = opened(stream := live_stream(engine, slow_reader=SlowReader.DROP))
    quick = opened(stream)
    for number in range(1, 194):
        engine.put("r", delta("r", number, "x"))
        read_now(quick)
        read_now(quick)
    assert read_now(slow) == []
    assert slow.failure is not None
    assert (slow.failure.code, quick.failure, engine.aborted) == ("overloaded", None, [])


@pytest.mark.parametrize("is_over", [False, True])
def test_a_reader_that_comes_back_far_behind_is_waited_for_once(is_over):
    engine = LiveEngine()
    stream = live_stream(engine, slow_reader=SlowReader.DROP)
    opened(stream).close()
    for number in range(1, 301):
        engine.put("r", delta("r", number, "x"))
    if is_over:
        engine.put("r", finished("r"))
    back = opened(stream)
    assert back.failure is None
    assert engine.paused == (set() if is_over else {"r"})
    text = ""
    while events := read_now(back):
        text += text_of(events)
    assert (text, back.failure, engine.paused) == ("x" * 300, None, set())
    if not is_over:
        for number in range(301, 494):
            engine.put("r", delta("r", number, "x"))
        assert read_now(back) == []
        assert back.failure is not None
        assert back.failure.code == "overloaded"


async def test_readers_that_are_far_behind_get_one_piece_in_a_turn_of_the_loop():
    engine = LiveEngine()
    stream = live_stream(engine)
    opened(stream).close()
    for number in range(1, 41):
        engine.put("r", delta("r", number, "x" * 1000))
    readers, num_pieces = [opened(stream) for _ in range(MAX_READERS)], [0]
    tasks = [asyncio.create_task(reader.receive()) for reader in readers]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        num_pieces.append(sum(task.done() for task in tasks))
    assert all(after - before <= 1 for before, after in pairwise(num_pieces))
    assert all(len(text_of(task.result())) >= PIECE_BYTES - 1000 for task in tasks)


async def test_a_long_answer_is_read_in_pieces_between_which_other_tasks_run():
    engine = LiveEngine()
    reader = opened(live_stream(engine))
    for number in range(1, 41):
        engine.put("r", delta("r", number, "x" * 1000))
    engine.put("r", finished("r"))
    pieces = [events async for events in reader]
    assert len(pieces) > 2
    assert all(len(text_of(events)) <= 2 * PIECE_BYTES for events in pieces)
    assert "".join(map(text_of, pieces)) == "x" * 40_000


def test_a_closed_reader_is_no_open_stream_any_longer():
    streams = Streams()
    reader = opened(live_stream(LiveEngine(), streams=streams))
    assert streams.num_open == 1
    reader.note_disconnect()
    reader.close()
    reader.close()
    assert (streams.num_open, streams.slow_readers["cut"]) == (0, 1)


def test_a_restored_answer_goes_on_behind_what_was_told_of_each_choice():
    engine = LiveEngine()
    stream = LiveStream(engine, [make_request("r-0", n=2), make_request("r-1", n=2), make_request("r-2", n=2)], "r")
    stream.restore(
        [columns_of(0, [Delta(0, (1, 2, 3), "abc")]), columns_of(0, [Delta(0, (4,), "d")])],
        [(1, finished("r", 1, num_tokens=0)), (2, finished("r", 2)), (3, finished("r", 3))],
    )
    submitted = stream.submit_again()
    assert submitted == [engine.requests[name] for name in ("r-0", "r-2")]
    assert sorted(engine.requests) == ["r-0", "r-2"], "of the other one nothing is left"
    assert engine.requests["r-0"].told == (ToldChoice((1, 2, 3, 4)), ToldChoice(has_ended=True))
    assert engine.requests["r-2"].told == ()
    assert (engine.sinks["r-0"].num_open_choices, engine.sinks["r-2"].num_open_choices) == (1, 2)
    engine.put("r-0", delta("r-0", 5, "e"), finished("r-0"))
    assert engine.sinks["r-0"].is_complete
    engine.put("r-2", delta("r-2", 1, "x"), finished("r-2"), finished("r-2", 1))
    assert stream.state is State.FINISHED
    assert stream.transcripts[0].cut(0, 5).text == "abcde"


def test_an_answer_that_waits_to_be_begun_again_can_be_cancelled():
    engine = LiveEngine()
    stream = live_stream(engine)
    stream.restore([columns_of(0, [Delta(0, (1,), "a")])], [])
    stream.cancel()
    assert stream.is_settled
    assert not stream.submit_again()
    assert not engine.sinks


def test_the_lag_of_a_reader_that_keeps_up_is_not_judged_for_every_token():
    class Counting(WaitingReader):
        num_checks = 0

        def check(self) -> Lag:
            self.num_checks += 1
            return super().check()

    engine = LiveEngine()
    stream = live_stream(engine)
    stream.start()
    reader = Counting(stream)
    reader.open()
    for number in range(1, 401):
        engine.put("r", delta("r", number, "x"))
        assert len(read_now(reader)) == 1
    assert 1 < reader.num_checks < 6
    for number in range(401, 400 + 192):  # the 400th was not delivered either: the reader has not come back
        engine.put("r", delta("r", number, "x"))
    assert engine.paused == set()
    engine.put("r", delta("r", 592, "x"))
    assert engine.paused == {"r"}


class LateRecorder:
    """A recorder whose tokens a test lets streams take."""

    def __init__(self) -> None:
        self.waiting: list[tuple[LiveStream, int, TokenDelta]] = []

    def add(self, stream: LiveStream, choice: int, delta: TokenDelta) -> None:
        self.waiting.append((stream, choice, delta))

    def add_ending(self, stream: LiveStream, ending: Ending) -> None:
        raise AssertionError("no test ends a stream")

    def is_durable(self, stream: LiveStream) -> bool:
        return True

    def forget(self, stream: LiveStream) -> None:
        raise AssertionError("no test forgets a stream")

    def record(self, num_left: int) -> None:
        while len(self.waiting) > num_left:
            stream, choice, delta = self.waiting.pop(0)
            stream.take(choice, delta)


def test_a_stream_pauses_for_its_recorder_from_a_high_mark_until_a_low_one():
    engine, recorder = LiveEngine(), LateRecorder()
    stream = live_stream(engine)
    stream.recorder = recorder
    stream.start()
    for number in range(1, HIGH_WAITING + 1):
        engine.put("r", delta("r", number, "a"))
    assert (stream.num_waiting, stream.is_paused, engine.paused) == (HIGH_WAITING, False, set())
    engine.put("r", delta("r", HIGH_WAITING + 1, "a"))
    assert (stream.is_behind, stream.is_paused, engine.paused) == (True, True, {"r"})
    recorder.record(LOW_WAITING + 1)
    stream.judge()
    assert stream.is_behind and engine.paused == {"r"}
    recorder.record(LOW_WAITING)
    stream.judge()
    assert (stream.is_behind, stream.is_paused, engine.paused) == (False, False, set())
