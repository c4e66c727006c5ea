"""The async engine passes one report per step to the loop, keeps streams separate, and bounds the queue."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.contract.brownout_effects import MAX_LEVEL
from app.contract.engine_counts import QueueCounts
from app.contract.engine_picture import EnginePicture
from app.contract.engine_status import EngineState, EngineStats, StepReport
from app.contract.errors import Draining, EngineFailed, ModelLoading, Overloaded
from app.contract.events import Finished, FinishReason, RequestFailed, TokenDelta
from app.contract.requests import Abort, Pause, Resume
from app.streaming.async_engine import AsyncEngine
from tests.fakes import MODEL_INFO, FakePort, Script, make_request, submit, text_of, tokens_of, turn_loop
from tests.streaming.engines import make_engine, read
from tests.streaming.live.pictures import picture


@pytest.fixture
async def threaded() -> AsyncIterator[tuple[AsyncEngine, FakePort]]:
    port = FakePort()
    engine = make_engine(port)
    port.run_thread()
    yield engine, port
    await engine.close()


async def test_streams_from_an_engine_thread_are_complete_and_separate(threaded: tuple[AsyncEngine, FakePort]):
    engine, port = threaded
    prompts = [(i, i + 1) for i in range(50)]
    streams = [
        submit(engine, make_request(f"r{i}", prompt=prompt, max_tokens=5 + i)) for i, prompt in enumerate(prompts)
    ]
    streams_read = await asyncio.gather(*map(read, streams))
    for i, (ids, text, ends) in enumerate(streams_read):
        assert (ids, text) == (tokens_of(prompts[i], 5 + i), text_of(prompts[i], 5 + i))
        assert [end.reason for end in ends] == [FinishReason.LENGTH]
    assert port.num_open == 0


async def test_each_step_makes_one_call_to_the_loop(
    threaded: tuple[AsyncEngine, FakePort], monkeypatch: pytest.MonkeyPatch
):
    engine, port = threaded
    loop = asyncio.get_running_loop()
    hand_over, callers = loop.call_soon_threadsafe, []

    def counted(callback: Any, *args: Any) -> asyncio.Handle:
        callers.append(threading.current_thread().name)
        return hand_over(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    streams = [submit(engine, make_request(f"r{i}", max_tokens=10 + i)) for i in range(20)]
    await asyncio.gather(*map(read, streams))
    assert port.steps >= 29
    assert callers == ["fake-engine"] * port.steps


async def test_a_slow_reader_gets_the_same_bytes_in_one_delta():
    port = FakePort()
    engine = make_engine(port)
    mailbox = submit(engine, make_request(max_tokens=100))
    port.step(100)
    await turn_loop()
    events = await mailbox.get()
    assert len(events) == 2
    assert events[0].text == text_of((1, 2, 3), 100)
    assert mailbox.num_merged == 99


async def test_abort_ends_the_stream_once_and_is_idempotent():
    port = FakePort()
    engine = make_engine(port)
    mailbox = submit(engine, make_request(max_tokens=100))
    port.step(3)
    engine.abort("r")
    engine.abort("r")
    engine.abort("unknown")
    port.step()
    assert port.num_open == 0
    ids, _, ends = await read(mailbox)
    assert ids == tokens_of((1, 2, 3), 3)
    assert [end.reason for end in ends] == [FinishReason.CANCELLED]
    engine.abort("r")
    assert Abort("unknown") not in port.posted


async def test_a_closed_mailbox_does_not_keep_its_request_open():
    port = FakePort()
    engine = make_engine(port)
    mailbox = submit(engine, make_request(max_tokens=3))
    mailbox.close()
    port.step(3)
    await turn_loop()
    async with asyncio.timeout(30):
        await engine.drain(60)


async def test_pause_and_resume_are_posted_while_the_request_is_open():
    port = FakePort()
    engine = make_engine(port)
    submit(engine, make_request(max_tokens=2))
    engine.pause("r")
    port.step(5)
    assert port.num_open == 1
    engine.resume("r")
    port.step(2)
    assert port.num_open == 0
    await turn_loop()
    posted = len(port.posted)
    engine.pause("r")
    engine.resume("r")
    assert port.posted[posted:] == []
    assert Pause("r") in port.posted and Resume("r") in port.posted


async def test_requests_are_rejected_while_the_model_loads():
    port = FakePort(state=EngineState.LOADING)
    engine = make_engine(port)
    with pytest.raises(ModelLoading, match="50%"):
        submit(engine, make_request())
    with pytest.raises(ModelLoading):
        engine.model_info()
    assert engine.health().state is EngineState.LOADING
    port.state = EngineState.READY
    submit(engine, make_request())
    assert engine.model_info() == MODEL_INFO


async def test_a_failed_engine_fails_every_open_stream_and_rejects_new_ones():
    port = FakePort(Script(crash_after=2))
    engine = make_engine(port)
    streams = [submit(engine, make_request(f"r{i}")) for i in range(3)]
    port.step(3)
    for ids, _, ends in [await read(stream) for stream in streams]:
        assert ids == tokens_of((1, 2, 3), 2)
        assert [type(end) for end in ends] == [RequestFailed]
        assert ends[0].error.code == "engine_error"
        assert "crashed" not in ends[0].error.message
    with pytest.raises(EngineFailed):
        submit(engine, make_request())
    with pytest.raises(EngineFailed):
        engine.model_info()
    async with asyncio.timeout(30):
        await engine.drain(60)


async def test_a_failed_request_does_not_affect_others():
    port = FakePort(Script(fail_after=2))
    engine = make_engine(port)
    long, short = submit(engine, make_request("long")), submit(engine, make_request("short", max_tokens=2))
    port.step(3)
    assert [type(end) for end in (await read(long))[2]] == [RequestFailed]
    assert [type(end) for end in (await read(short))[2]] == [Finished]


async def test_a_burst_can_fill_the_seats_and_the_queue():
    engine = make_engine(FakePort(Script(max_num_seqs=3)), max_queue=4, max_num_seqs=3)
    for i in range(7):
        submit(engine, make_request(f"r{i}"))
    with pytest.raises(Overloaded, match="4 requests are waiting"):
        submit(engine, make_request("one more"))


async def test_the_queue_accepts_requests_as_others_end():
    port = FakePort(Script(max_num_seqs=1))
    engine = make_engine(port, max_queue=1, max_num_seqs=1)
    submit(engine, make_request("a", max_tokens=2))
    submit(engine, make_request("b", max_tokens=2))
    port.step()
    await turn_loop()
    with pytest.raises(Overloaded):
        submit(engine, make_request("c"))
    port.step()
    await turn_loop()
    submit(engine, make_request("c"))
    with pytest.raises(Overloaded):
        submit(engine, make_request("d"))


async def test_a_queue_behind_a_full_cache_is_bounded():
    """Seats are free, but the engine reports waiting requests, so that a new request would wait, too."""
    port = FakePort()
    engine = make_engine(port, max_queue=2, max_num_seqs=64)
    for i in range(3):
        submit(engine, make_request(f"r{i}"))
    engine._deliver(StepReport((), EngineStats(queues=QueueCounts(1, 2))))
    await turn_loop()
    with pytest.raises(Overloaded):
        submit(engine, make_request("one more"))


async def test_without_a_queue_a_request_needs_a_free_seat():
    engine = make_engine(FakePort(), max_queue=0, max_num_seqs=1)
    engine.check_room("an account")
    submit(engine, make_request("a"))
    with pytest.raises(Overloaded):
        submit(engine, make_request("b"))
    with pytest.raises(Overloaded):
        engine.check_room("an account")


async def test_every_choice_takes_a_seat():
    engine = make_engine(FakePort(Script(max_num_seqs=8)), max_queue=3, max_num_seqs=8)
    for i in range(5):
        submit(engine, make_request(f"r{i}", n=4))
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        submit(engine, make_request("one more", n=4))


async def test_the_queue_is_counted_in_requests_not_in_choices():
    port = FakePort(Script(max_num_seqs=8))
    engine = make_engine(port, max_queue=3, max_num_seqs=8)
    for i in range(3):
        submit(engine, make_request(f"r{i}", n=4))
    port.step()
    await turn_loop()
    for i in range(3, 5):
        submit(engine, make_request(f"r{i}", n=4))
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        submit(engine, make_request("one more"))


async def test_finished_choices_free_their_seats():
    port = FakePort(Script(max_num_seqs=4, others=[["a"]] * 3))
    engine = make_engine(port, max_queue=0, max_num_seqs=4)
    submit(engine, make_request("a", n=4))
    with pytest.raises(Overloaded):
        submit(engine, make_request("b"))
    port.step()
    await turn_loop()
    submit(engine, make_request("b"))


async def test_every_candidate_of_best_of_takes_a_seat():
    engine = make_engine(FakePort(), max_queue=0, max_num_seqs=6)
    submit(engine, make_request("a", best_of=6))
    with pytest.raises(Overloaded):
        submit(engine, make_request("b"))


async def test_at_the_highest_overload_level_new_requests_are_rejected():
    port = FakePort(Script(brownout_level=MAX_LEVEL))
    engine = make_engine(port)
    mailbox = submit(engine, make_request("a", max_tokens=3))
    port.step()
    await turn_loop()
    with pytest.raises(Overloaded, match="is overloaded"):
        submit(engine, make_request("b"))
    port.step(2)
    assert (await read(mailbox))[0] == tokens_of((1, 2, 3), 3)
    submit(engine, make_request("b"))


async def test_below_the_highest_overload_level_requests_are_admitted():
    port = FakePort(Script(brownout_level=MAX_LEVEL - 1))
    engine = make_engine(port)
    for i in range(3):
        submit(engine, make_request(f"r{i}"))
        port.step()
        await turn_loop()
    assert engine.stats().brownout_level == MAX_LEVEL - 1


@pytest.mark.parametrize("num_paused", [0, 1])
async def test_an_idle_engine_is_not_overloaded(num_paused: int):
    """An idle engine may send no further report, so that its last level must not count."""
    engine = make_engine(FakePort())
    stats = EngineStats(brownout_level=MAX_LEVEL, queues=QueueCounts(0, 0, num_paused))
    engine._deliver(StepReport((), stats))
    await turn_loop()
    assert engine.stats().brownout_level == 0
    submit(engine, make_request())


async def test_drain_waits_for_open_requests_and_rejects_new_ones():
    port = FakePort()
    engine = make_engine(port)
    mailbox = submit(engine, make_request(max_tokens=2))
    drain = asyncio.create_task(engine.drain(60))
    await turn_loop()
    assert engine.health().state is EngineState.DRAINING
    with pytest.raises(Draining):
        submit(engine, make_request("late"))
    assert not drain.done()
    port.step(2)
    async with asyncio.timeout(30):
        await drain
    assert (await read(mailbox))[0] == tokens_of((1, 2, 3), 2)


async def test_drain_ends_after_its_timeout():
    engine = make_engine(FakePort())
    submit(engine, make_request())
    async with asyncio.timeout(30):
        await engine.drain(0.001)


async def test_close_ends_every_stream_even_if_the_engine_does_not():
    port = FakePort()
    engine = make_engine(port)
    mailbox = submit(engine, make_request())
    await engine.close()
    await engine.close()
    ends = (await read(mailbox))[2]
    assert [type(end) for end in ends] == [RequestFailed]
    assert ends[0].error.code == "draining"


async def test_close_waits_for_the_engine_to_process_aborts(threaded: tuple[AsyncEngine, FakePort]):
    engine, port = threaded
    mailbox = submit(engine, make_request(max_tokens=10**6))
    seen = await mailbox.get()
    await engine.close()
    while events := await mailbox.get():
        seen += events
    *deltas, end = seen
    assert all(isinstance(event, TokenDelta) for event in deltas)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    assert port.join(0)


async def test_every_report_is_observed_before_readers_wake():
    seen: list[StepReport] = []
    port = FakePort()
    engine = make_engine(port, observe=seen.append)
    mailbox = submit(engine, make_request(max_tokens=2))
    port.step()
    await mailbox.get()
    assert len(seen) == 1
    assert engine.stats() == seen[0].stats
    assert engine.stats().queues.num_running == 1


async def test_a_picture_comes_once_its_report_is_observed():
    # The figures beside the last picture of an engine that then idles have to be those of its last step.
    seen: list[StepReport | EnginePicture] = []
    engine = make_engine(FakePort(), observe=seen.append)
    engine.watch(seen.append)
    made = picture(1, [])
    report = StepReport((), EngineStats(), 0.004, 0, 1, picture=made)
    engine._receive(report)
    assert seen == [report, made]


async def test_a_failing_observer_does_not_affect_streams(caplog: pytest.LogCaptureFixture):
    def broken(report: StepReport) -> None:
        raise KeyError("planted failure")

    port = FakePort()
    engine = make_engine(port, observe=broken)
    mailbox = submit(engine, make_request(max_tokens=3))
    port.step(3)
    ids, _, ends = await read(mailbox)
    assert ids == tokens_of((1, 2, 3), 3)
    assert [end.reason for end in ends] == [FinishReason.LENGTH]
    assert engine.stats().step == 3
    assert len(caplog.records) == 3
    async with asyncio.timeout(30):
        await engine.drain(60)


def test_reports_after_the_loop_has_closed_are_ignored():
    port = FakePort()

    async def start() -> None:
        submit(make_engine(port), make_request())

    asyncio.run(start())
    port.step(3)
    assert port.steps == 3
