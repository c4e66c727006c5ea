"""A session releases its request exactly once, however it ends, and has the timings and usage of its stream."""

import asyncio
import contextlib

import pytest

from app.contract.engine_status import EngineState
from app.contract.errors import ModelLoading
from app.contract.events import ChoiceEnd, Finished, FinishReason, RequestFailed, TokenDelta, Usage
from app.contract.requests import Pause, Resume
from app.streaming.flow.delta_buffer import TOKEN_BYTES
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.session import Session
from app.streaming.streams import Streams
from tests.fakes import FakeClock, FakeEngine, Script, make_request, text_of, turn_loop


async def test_a_session_read_to_its_end_aborts_nothing():
    engine = FakeEngine()
    text = ""
    async with Session(engine, make_request(max_tokens=20)) as session:
        async for events in session:
            text += "".join(event.text for event in events if isinstance(event, TokenDelta))
    assert text == text_of((1, 2, 3), 20)
    assert session.ends == {0: ChoiceEnd(FinishReason.LENGTH)}
    assert (session.usage.prompt_tokens, session.usage.completion_tokens) == (3, 20)
    assert session.error is None
    assert engine.aborted == []


async def test_the_usage_counts_the_prompt_once_and_the_tokens_of_every_choice():
    engine = FakeEngine(Script(others=[["a", "b"]], usage=Usage(0, 0, 2, 1, 30)), held=True)
    async with Session(engine, make_request(n=3, max_tokens=5)) as session:
        engine.step(2)
        await session.receive()
        assert not session.is_finished
        assert session.usage == Usage(3, 2, 2, 1, 30)
        engine.port.script.usage = Usage(0, 0, 2, 2, 40)
        engine.step(3)
        async for _ in session:
            pass
    assert session.is_finished
    assert session.usage == Usage(3, 12, 2, 2, 40)
    assert session.num_tokens == 12
    assert session.end_reason == "length, stop"


async def test_the_timings_of_several_choices_span_all_of_them():
    engine = FakeEngine(Script(others=[["a", "b"]]))
    async with Session(engine, make_request(n=2, max_tokens=5)) as session:
        async for _ in session:
            pass
    timings = session.timings()
    assert timings.ttft_ms == pytest.approx(2)
    assert timings.decode_tok_s == pytest.approx((7 - 2) / 0.005)


async def test_leaving_the_block_early_aborts_once():
    engine = FakeEngine(held=True)
    async with Session(engine, make_request()) as session:
        engine.step()
        assert await session.receive()
    session.close()
    assert engine.aborted == ["r"]
    assert engine.port.num_open == 0
    assert (session.num_tokens, session.usage) == (1, None)


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_what_a_request_needs_is_released_when_its_session_is_closed(is_loaded):
    engine, released = FakeEngine(held=True), []
    engine.port.state = EngineState.READY if is_loaded else EngineState.LOADING
    session = Session(engine, make_request(), release=lambda: released.append(True))
    with contextlib.suppress(ModelLoading):
        async with session:
            assert is_loaded and not released
    assert released


async def test_an_error_in_the_block_aborts_once():
    engine = FakeEngine(held=True)
    with pytest.raises(ZeroDivisionError):
        async with Session(engine, make_request()):
            raise ZeroDivisionError
    assert engine.aborted == ["r"]


async def test_cancelling_a_waiting_reader_aborts_once():
    engine = FakeEngine(held=True)

    async def read() -> None:
        async with Session(engine, make_request()) as session:
            async for _ in session:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert engine.aborted == ["r"]


async def test_close_aborts_a_session_whose_generator_never_started():
    """The generator's own `finally` would never run."""
    engine = FakeEngine(held=True)
    session = Session(engine, make_request())
    session.open()

    async def body():
        async for events in session:
            yield events

    generator = body()
    session.close()
    await generator.aclose()
    assert engine.aborted == ["r"]


async def test_cancel_aborts_once_and_the_reader_gets_the_finish():
    engine = FakeEngine(held=True)
    async with Session(engine, make_request()) as session:
        engine.step(2)
        session.cancel()
        session.cancel()
        events = [event async for batch in session for event in batch]
    assert isinstance(events[-1], Finished)
    assert session.ends == {0: ChoiceEnd(FinishReason.CANCELLED)}
    assert engine.aborted == ["r"]


async def test_a_failed_request_is_not_aborted():
    engine = FakeEngine(Script(fail_after=2))
    async with Session(engine, make_request()) as session:
        events = [event async for batch in session for event in batch]
    assert isinstance(events[-1], RequestFailed)
    assert session.error.code == "engine_error"
    assert session.is_finished
    assert session.timings() is None
    assert engine.aborted == []


async def test_a_rejected_request_needs_no_close():
    engine = FakeEngine()
    engine.port.state = EngineState.LOADING
    session = Session(engine, make_request())
    with pytest.raises(ModelLoading):
        async with session:
            pass
    session.close()
    assert engine.aborted == []


async def test_timings_come_from_the_engine_and_gaps_from_the_clock():
    engine, clock = FakeEngine(held=True), FakeClock()
    async with Session(engine, make_request(max_tokens=8), clock) as session:
        for gap_s, tokens in [(1.0, 1), (0.010, 1), (0.080, 4), (0.030, 1), (5.0, 1)]:
            clock.advance(gap_s)
            engine.step(tokens)
            await session.receive()
    timings = session.timings()
    assert timings.queue_ms == pytest.approx(1)
    assert timings.ttft_ms == pytest.approx(2)
    assert timings.prefill_tok_s == pytest.approx(3 / 0.001)
    assert timings.decode_tok_s == pytest.approx(7 / 0.008)
    assert timings.itl_p50_ms == pytest.approx(20)  # gaps in ms: 10, 4 x 20, 30, 5000


async def test_a_single_token_has_no_rate_and_no_gap():
    engine = FakeEngine()
    async with Session(engine, make_request(max_tokens=1)) as session:
        async for _ in session:
            pass
    assert session.timings()[3:] == (0.0, 0.0)


# --- Slow readers -----------------------------------------------------------------------------------------------------


def commands(engine: FakeEngine, kind: type) -> int:
    return sum(isinstance(command, kind) for command in engine.port.posted)


async def test_a_slow_reader_pauses_generation_and_gets_every_token():
    engine, streams, calls = FakeEngine(), Streams(), []
    session = Session(
        engine,
        make_request(max_tokens=1000),
        streams=streams,
        on_pause=lambda: calls.append(Pause),
        on_resume=lambda: calls.append(Resume),
    )
    async with session:
        await until_idle(engine)
        assert session.is_paused
        assert streams.pending_bytes > 0
        assert engine.port.steps < 200
        assert streams.slow_readers == {"pause": 1, "coalesce": 0, "drop": 0, "cut": 0}
        text = ""
        async for events in session:
            text += "".join(event.text for event in events if isinstance(event, TokenDelta))
            await until_idle(engine)
    assert text == text_of((1, 2, 3), 1000)
    assert not session.is_paused
    assert commands(engine, Pause) == commands(engine, Resume) == calls.count(Pause) == calls.count(Resume) >= 5
    assert engine.aborted == []


async def test_coalescing_continues_generation_and_merges_pending_deltas():
    engine, streams = FakeEngine(), Streams()
    request = make_request(max_tokens=1000)
    async with Session(engine, request, slow_reader=SlowReader.COALESCE, streams=streams) as session:
        await until_idle(engine)
        assert engine.port.num_open == 0
        assert streams.num_merged == 999
        assert streams.pending_bytes == len(text_of((1, 2, 3), 1000).encode()) + 1000 * TOKEN_BYTES
        pieces = [await session.receive() for _ in range(2)]
        *deltas, end = [event for piece in pieces for event in piece]
    assert "".join(delta.text for delta in deltas) == text_of((1, 2, 3), 1000)
    assert len(deltas) == 2, "a piece of 8 KiB, and the rest"
    assert end.reason is FinishReason.LENGTH
    assert commands(engine, Pause) == 0
    assert streams.slow_readers["coalesce"] == 1
    assert (streams.num_merged, streams.pending_bytes) == (999, 0)


async def test_dropping_ends_the_stream_with_an_error_after_its_pending_text():
    engine, streams = FakeEngine(), Streams()
    request = make_request(max_tokens=1000)
    async with Session(engine, request, slow_reader=SlowReader.DROP, streams=streams) as session:
        await until_idle(engine)
        delta, failure = await session.receive()
        assert await session.receive() == []
    assert delta.text == text_of((1, 2, 3), 192)  # one more token was generated meanwhile
    assert failure.error.code == "overloaded"
    assert engine.aborted == ["r"]
    assert engine.port.num_open == 0
    assert streams.slow_readers["drop"] == 1


async def test_a_stream_of_one_report_does_not_count_as_slow():
    engine, streams = FakeEngine(held=True), Streams()
    request = make_request(max_tokens=1000, best_of=2, temperature=1.0)
    async with Session(engine, request, slow_reader=SlowReader.DROP, streams=streams) as session:
        engine.step(1000)
        await turn_loop()
        events = [event async for batch in session for event in batch]
    assert session.error is None
    assert sum(len(event.token_ids) for event in events if isinstance(event, TokenDelta)) == 1000
    assert set(streams.slow_readers.values()) == {0}


async def test_streams_are_idle_when_the_last_one_is_closed():
    engine, streams = FakeEngine(held=True), Streams()
    idle = asyncio.create_task(streams.wait_idle())
    async with Session(engine, make_request("one"), streams=streams):
        async with Session(engine, make_request("two"), streams=streams):
            waiting = asyncio.create_task(streams.wait_idle())
            await asyncio.sleep(0)
            assert streams.num_open == 2
        assert not waiting.done()
    await waiting
    await idle


async def until_idle(engine: FakeEngine) -> None:
    """Let the engine step until it has no work."""
    await turn_loop(2500)
    assert not engine.port.has_work
