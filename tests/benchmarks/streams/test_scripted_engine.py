"""The scripted engine generates known tokens at its rate, executes commands, and never runs ahead of the loop."""

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
class EngineAndEvents:
    """A scripted engine, and the events that it has sent to the loop."""

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
async def driven() -> AsyncIterator[EngineAndEvents]:
    loop = EngineAndEvents(ScriptedEngine(MODEL_INFO))
    loop.start()
    yield loop
    loop.engine.stop()
    assert await asyncio.to_thread(loop.engine.join, HANG_S)


def submit(name: str, stream: int, speed: int = 1, max_tokens: int = 1000) -> Submit:
    """A request for a stream."""
    params = SamplingParams(max_tokens=max_tokens, seed=seed_of(stream, speed))
    return Submit(EngineRequest(name, (1, 2, 3), params, 0.0))


async def test_no_token_is_generated_before_a_rate_is_set(driven):
    driven.post(submit("a", 1), submit("b", 2))
    await until(lambda: driven.engine.num_open == 2)
    assert driven.events == []
    assert driven.engine.tokens() == {1: 0, 2: 0}


async def test_one_report_has_the_tokens_of_all_streams(driven):
    driven.post(submit("a", 1), submit("b", 2))
    driven.engine.pace(200)
    await until(lambda: len(driven.numbers("b")) >= 5)
    assert driven.numbers("a")[:5] == [1, 2, 3, 4, 5]
    assert set(driven.sizes) == {2}
    for event in driven.events:
        token = read_token(event.text)
        assert (token.prefix, token.number) == (f" {1 if event.request_id == 'a' else 2:04x}", event.first)


async def test_a_faster_stream_has_additional_steps(driven):
    driven.post(submit("a", 1, speed=20), submit("b", 2))
    driven.engine.pace(10)
    await until(lambda: len(driven.numbers("b")) >= 4)
    ids = [event.request_id for event in driven.events]
    second, third = (index for index, name in enumerate(ids) if name == "b" and ids[:index].count("b") in (1, 2))
    assert ids[second:third].count("a") == 20
    assert driven.numbers("a") == list(range(1, ids.count("a") + 1))
    assert set(driven.sizes) == {1, 2}


async def test_additional_steps_end_when_the_faster_stream_pauses(driven):
    driven.post(submit("a", 1, speed=20), submit("b", 2))
    driven.engine.pace(50)
    await until(lambda: len(driven.numbers("b")) >= 3)
    driven.post(Pause("a"))
    await until(lambda: driven.sizes[-1] == 1 and driven.events[-1].request_id == "b")
    driven.sizes.clear()
    num_before = len(driven.numbers("b"))
    await until(lambda: len(driven.sizes) >= 25)
    assert len(driven.numbers("b")) - num_before >= 5


async def test_streams_end_at_max_tokens_or_at_finish(driven):
    driven.post(submit("a", 1, max_tokens=3), submit("b", 2))
    driven.engine.pace(200)
    await until(lambda: len(driven.numbers("b")) >= 5)
    driven.engine.pace(HOLD)
    driven.engine.finish()
    await until(lambda: len(driven.ends()) == 2)
    assert driven.ends()["a"] == (FinishReason.LENGTH, 3)
    assert driven.ends()["b"] == (FinishReason.LENGTH, len(driven.numbers("b")))
    assert driven.engine.num_open == 0
    assert driven.engine.tokens() == {1: 3, 2: len(driven.numbers("b"))}


async def test_paused_and_aborted_streams_get_no_tokens(driven):
    driven.post(submit("a", 1), submit("b", 2), submit("c", 3))
    driven.post(Pause("a"), Abort("b"))
    driven.engine.pace(200)
    await until(lambda: len(driven.numbers("c")) >= 5)
    assert driven.numbers("a") == driven.numbers("b") == []
    assert driven.ends() == {"b": (FinishReason.CANCELLED, 0)}
    driven.post(Resume("a"))
    await until(lambda: len(driven.numbers("a")) >= 2)
    assert driven.numbers("a")[:2] == [1, 2]


async def test_a_saturated_engine_is_never_ahead_of_the_loop(driven):
    driven.post(submit("a", 1))
    await until(lambda: driven.engine.num_open == 1)
    driven.engine.pace(SATURATED)
    for _ in range(300):
        await asyncio.sleep(0)
        assert sum(driven.engine.tokens().values()) - len(driven.numbers("a")) <= 1
    await until(lambda: len(driven.numbers("a")) >= 50)


async def test_the_quiet_time_is_between_two_steps(driven):
    assert driven.engine.quiet_time() <= monotonic()
    driven.post(submit("a", 1))
    driven.engine.pace(2)
    before = monotonic()
    first = driven.engine.quiet_time()
    assert before < first <= monotonic() + 0.5


async def test_the_engine_is_ready_and_never_busy_until_it_fails(driven):
    from app.contract.errors import EngineFailed

    health = driven.engine.health()
    assert (health.state, health.is_busy, driven.engine.model_info()) == (EngineState.READY, False, MODEL_INFO)
    driven.engine.fail(EngineFailed("given up"))
    assert (driven.engine.health().state, driven.engine.health().message) == (EngineState.FAILED, "given up")


async def test_open_streams_are_cancelled_at_the_end():
    driven = EngineAndEvents(ScriptedEngine(MODEL_INFO))
    driven.start()
    driven.post(submit("a", 1))
    await until(lambda: driven.engine.num_open == 1)
    driven.engine.stop()
    await until(lambda: driven.ends() == {"a": (FinishReason.CANCELLED, 0)})
    assert await asyncio.to_thread(driven.engine.join, HANG_S)
