"""The scripted engine makes exact tokens at its pace, obeys commands, and never runs ahead of the loop."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from app.contract.engine_status import EngineState, ModelInfo, StepReport
from app.contract.events import EngineEvent, Finished, FinishReason, TokenDelta
from app.contract.requests import Abort, EngineCommand, EngineRequest, Pause, Resume, Submit
from app.contract.sampling_params import SamplingParams
from app.runtime.clock import monotonic
from benchmarks.streams.script import read_token, seed_of
from benchmarks.streams.scripted_engine import HOLD, SATURATED, ScriptedEngine
from tests.api.serving import until

MODEL_INFO = ModelInfo("scripted", "0", 4096, 4096, 1000)
HANG_S = 60.0


@dataclass
class Loop:
    """An engine and the loop's side of it: reports are read where the bridge would read them."""

    engine: ScriptedEngine
    events: list[EngineEvent] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine.start(lambda report: loop.call_soon_threadsafe(self.receive, report))

    def receive(self, report: StepReport) -> None:
        self.sizes.append(len(report.events))
        self.events += list(report.events)

    def post(self, *commands: EngineCommand) -> None:
        for command in commands:
            self.engine.post(command)

    def numbers(self, request_id: str) -> list[int]:
        return [
            event.first for event in self.events if isinstance(event, TokenDelta) and event.request_id == request_id
        ]

    def ends(self) -> dict[str, tuple[FinishReason, int]]:
        return {
            event.request_id: (event.reason, event.usage.completion_tokens)
            for event in self.events
            if isinstance(event, Finished)
        }


@pytest.fixture
async def side() -> AsyncIterator[Loop]:
    loop = Loop(ScriptedEngine(MODEL_INFO))
    loop.start()
    yield loop
    loop.engine.stop()
    assert await asyncio.to_thread(loop.engine.join, HANG_S)


def submit(name: str, stream: int, speed: int = 1, max_tokens: int = 1000) -> Submit:
    """A request for a stream."""
    params = SamplingParams(max_tokens=max_tokens, seed=seed_of(stream, speed))
    return Submit(EngineRequest(name, (1, 2, 3), params, 0.0))


async def test_nothing_is_made_before_there_is_a_pace(side):
    side.post(submit("a", 1), submit("b", 2))
    await until(lambda: side.engine.num_open == 2)
    assert side.events == []
    assert side.engine.tokens() == {1: 0, 2: 0}


async def test_tokens_are_exact_and_all_streams_have_theirs_in_one_report(side):
    side.post(submit("a", 1), submit("b", 2))
    side.engine.pace(200)
    await until(lambda: len(side.numbers("b")) >= 5)
    assert side.numbers("a")[:5] == [1, 2, 3, 4, 5]
    assert set(side.sizes) == {2}
    for event in side.events:
        token = read_token(event.text)
        assert (token.prefix, token.number) == (f" {1 if event.request_id == 'a' else 2:04x}", event.first)


async def test_a_faster_stream_has_steps_of_its_own_in_between(side):
    side.post(submit("a", 1, speed=20), submit("b", 2))
    side.engine.pace(10)
    await until(lambda: len(side.numbers("b")) >= 4)
    told = [event.request_id for event in side.events]
    second, third = (place for place, name in enumerate(told) if name == "b" and told[:place].count("b") in (1, 2))
    assert told[second:third].count("a") == 20
    assert side.numbers("a") == list(range(1, told.count("a") + 1))
    assert set(side.sizes) == {1, 2}


async def test_steps_are_whole_again_when_the_faster_stream_pauses(side):
    side.post(submit("a", 1, speed=20), submit("b", 2))
    side.engine.pace(50)
    await until(lambda: len(side.numbers("b")) >= 3)
    side.post(Pause("a"))
    await until(lambda: side.sizes[-1] == 1 and side.events[-1].request_id == "b")
    side.sizes.clear()
    num_before = len(side.numbers("b"))
    await until(lambda: len(side.sizes) >= 25)
    assert len(side.numbers("b")) - num_before >= 5


async def test_streams_end_at_their_limit_or_when_told(side):
    side.post(submit("a", 1, max_tokens=3), submit("b", 2))
    side.engine.pace(200)
    await until(lambda: len(side.numbers("b")) >= 5)
    side.engine.pace(HOLD)
    side.engine.finish()
    await until(lambda: len(side.ends()) == 2)
    assert side.ends()["a"] == (FinishReason.LENGTH, 3)
    assert side.ends()["b"] == (FinishReason.LENGTH, len(side.numbers("b")))
    assert side.engine.num_open == 0
    assert side.engine.tokens() == {1: 3, 2: len(side.numbers("b"))}


async def test_paused_and_aborted_streams_get_no_more(side):
    side.post(submit("a", 1), submit("b", 2), submit("c", 3))
    side.post(Pause("a"), Abort("b"))
    side.engine.pace(200)
    await until(lambda: len(side.numbers("c")) >= 5)
    assert side.numbers("a") == side.numbers("b") == []
    assert side.ends() == {"b": (FinishReason.CANCELLED, 0)}
    side.post(Resume("a"))
    await until(lambda: len(side.numbers("a")) >= 2)
    assert side.numbers("a")[:2] == [1, 2]


async def test_a_saturated_engine_is_never_ahead_of_the_loop(side):
    side.post(submit("a", 1))
    await until(lambda: side.engine.num_open == 1)
    side.engine.pace(SATURATED)
    for _ in range(300):
        await asyncio.sleep(0)
        assert sum(side.engine.tokens().values()) - len(side.numbers("a")) <= 1
    await until(lambda: len(side.numbers("a")) >= 50)


async def test_quiet_times_lie_between_steps(side):
    assert side.engine.quiet_time() <= monotonic()
    side.post(submit("a", 1))
    side.engine.pace(2)
    first = side.engine.quiet_time()
    assert 0 < first - monotonic() <= 0.5


async def test_it_is_ready_and_never_busy_and_may_fail(side):
    from app.contract.errors import EngineFailed

    health = side.engine.health()
    assert (health.state, health.is_busy, side.engine.model_info()) == (EngineState.READY, False, MODEL_INFO)
    side.engine.fail(EngineFailed("given up"))
    assert (side.engine.health().state, side.engine.health().message) == (EngineState.FAILED, "given up")


async def test_open_streams_are_cancelled_at_the_end():
    side = Loop(ScriptedEngine(MODEL_INFO))
    side.start()
    side.post(submit("a", 1))
    await until(lambda: side.engine.num_open == 1)
    side.engine.stop()
    await until(lambda: side.ends() == {"a": (FinishReason.CANCELLED, 0)})
    assert await asyncio.to_thread(side.engine.join, HANG_S)
