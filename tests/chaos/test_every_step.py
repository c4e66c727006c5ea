"""An exception in any step: the server survives, and every stream soon continues with identical tokens."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from app.contract.events import Finished
from app.engine.schedule.step_plan import StepPlan
from app.streaming.async_engine import AsyncEngine
from tests.chaos.engine_thread import admitted, engine_thread, read, tokens
from tests.engine.execute.injected_faults import InjectedFaults

NUM_STREAMS = 8
FEW = (1, 2, 50, 151)
ALL = tuple(range(1, 201))
SETTINGS: dict[str, object] = {"num_kv_blocks": 64, "max_num_batched_tokens": 64, "max_num_seqs": 8}


class CountedFaults(InjectedFaults):
    """Counts the steps that are sampled from the fault until the engine waits for a result again."""

    num_steps: int | None = None
    has_recovered = False

    def before_sample(self, plan: StepPlan) -> None:
        try:
            super().before_sample(plan)
        except self.error:
            self.num_steps = 0
            raise
        if self.num_steps is not None and not self.has_recovered:
            self.num_steps += 1

    def before_result(self, plan: StepPlan) -> None:
        self.has_recovered = self.num_steps is not None


async def streams(engine: AsyncEngine) -> list[dict[int, list[int]]]:
    """Eight greedy streams at once, long enough for 200 steps; the last ones start late."""

    async def one(number: int) -> dict[int, list[int]]:
        prompt = tuple(range(10 + number, 20 + 4 * number))
        return tokens(await read(engine, admitted(engine, str(number), prompt, max_tokens=100 + 15 * number)))

    return await asyncio.gather(*(one(number) for number in range(NUM_STREAMS)))


@cache
def expected() -> list[dict[int, list[int]]]:
    """The tokens of the streams without a fault."""

    async def run() -> list[dict[int, list[int]]]:
        async with engine_thread(**SETTINGS) as engine:
            return await streams(engine)

    return asyncio.run(run())


async def check(step: int) -> None:
    """Check that a fault in the `step`-th step changes no token, and that the next step completes."""
    faults = CountedFaults(before_sample={step})
    without_fault = await asyncio.to_thread(expected)
    async with engine_thread(faults, **SETTINGS) as engine:
        assert await streams(engine) == without_fault
        assert engine.stats().recovery.num_faults == 1 and engine.stats().recovery.num_culprits == 0
        assert faults.has_recovered and faults.num_steps == 1
        again = await read(engine, admitted(engine, "again", (5, 6, 7)))
        assert isinstance(again[-1], Finished)


@pytest.mark.parametrize("step", FEW)
async def test_a_fault_in_a_step_changes_no_token(step: int, caplog: pytest.LogCaptureFixture):
    await check(step)


@pytest.mark.long
@pytest.mark.parametrize("step", ALL)
async def test_a_fault_in_any_step_changes_no_token(step: int, caplog: pytest.LogCaptureFixture):
    await check(step)
