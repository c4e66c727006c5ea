"""Long prompts must not delay decoding sequences.

Others: blazux/qwen3.8-Flash-DGX#9 (0.2 tokens/s beside two prompts of 72,000 tokens), vllm#7537 (6 to 9 s without a
token). Here the time of a step is a function of its tokens and of the tokens they attend to, so that it can be compared
with the target.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from app.engine.engine import Engine
from app.engine.execute.interfaces import InFlight
from app.engine.schedule.step_budget import FIRST_CHUNK, MIN_CHUNK
from app.engine.schedule.step_plan import StepPlan, StepResult
from benchmarks.passing_runner import PassingRunner
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request

TARGET_S = 0.02
NUM_UNKNOWN_STEPS = 8
LONG = 2000
DECODING = ("a", "b", "c")


def seconds(plan: StepPlan) -> float:
    """The time of a step in these tests."""
    num_attended = sum(
        len(chunk.token_ids) * chunk.start + len(chunk.token_ids) * (len(chunk.token_ids) + 1) // 2
        for chunk in plan.chunks
    )
    return 0.002 + 0.0003 * plan.num_tokens + 1e-7 * num_attended


class TimedRunner(PassingRunner):
    """Wraps the model runner: reports `seconds` as the duration of each step, and records the plans."""

    def __init__(self, engine: Engine) -> None:
        self.plans: list[StepPlan] = []
        self._runner, engine.runner = engine.runner, self

    def launch(self, plan: StepPlan) -> InFlight:
        self.plans.append(plan)
        return TimedStep(super().launch(plan))


class TimedStep:
    """A launched step whose reported duration is `seconds`."""

    def __init__(self, in_flight: InFlight) -> None:
        self.plan, self.run_ahead = in_flight.plan, in_flight.run_ahead
        self._in_flight = in_flight

    def wait(self) -> StepResult:
        return replace(self._in_flight.wait(), duration_s=seconds(self.plan), transfer_s=0.0)


def prompt_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(4, 290), k=length)


def engine(**settings: object) -> Engine:
    folder = tiny("Llama", max_position_embeddings=4096)
    return build(folder, **{"itl_target": TARGET_S, "num_kv_blocks": 512, "max_num_batched_tokens": 1024, **settings})


def run_long_prompts_beside_decodes(run: Run) -> None:
    """Start three decoding sequences, add two very long prompts, and step until these have their first tokens."""
    built = run.engine
    run.add(*(request(built, name, prompt_of(5, seed), max_tokens=1000) for seed, name in enumerate(DECODING)))
    run.step(NUM_UNKNOWN_STEPS + 2)
    run.add(*(request(built, f"long {seed}", prompt_of(LONG, seed), max_tokens=1) for seed in (8, 9)))
    while not (run.end("long 8") and run.end("long 9")):
        before = [len(run.tokens(name)) for name in DECODING]
        run.step()
        assert [len(run.tokens(name)) for name in DECODING] == [num + 1 for num in before], "a step without a token"


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair"])
def test_every_step_decodes_all_sequences_and_stays_within_the_target(policy: str):
    run = Run(engine(scheduling_policy=policy))
    timed = TimedRunner(run.engine)
    run_long_prompts_beside_decodes(run)
    mixed = [plan for plan in timed.plans if plan.num_prompt_tokens and plan.num_tokens > plan.num_prompt_tokens]
    assert max(map(seconds, mixed)) <= TARGET_S * 1.001
    assert run.engine.stats().budget.num_over_target == 0
    assert all(plan.num_prompt_tokens >= MIN_CHUNK for plan in mixed[:-2]), "prompts progress in every step"
    assert sum(plan.num_prompt_tokens for plan in mixed) == 2 * LONG
    fullest = (TARGET_S - 0.002) / 0.0003
    assert max(plan.num_tokens for plan in mixed) > 0.7 * fullest, "steps are filled: prompts do not wait needlessly"


def test_chunks_are_short_before_the_step_cost_is_known():
    run = Run(engine())
    timed = TimedRunner(run.engine)
    run.add(request(run.engine, "long", prompt_of(LONG, 8), max_tokens=1))
    run.step(NUM_UNKNOWN_STEPS)
    assert [plan.num_tokens for plan in timed.plans] == [FIRST_CHUNK] * NUM_UNKNOWN_STEPS


def test_prompts_progress_even_if_decoding_alone_exceeds_the_target():
    """The reverse case: with a target that cannot be reached, new requests still start."""
    run = Run(engine(itl_target=0.001))
    timed = TimedRunner(run.engine)
    run_long_prompts_beside_decodes(run)
    mixed = [plan for plan in timed.plans if plan.num_prompt_tokens and plan.num_tokens > plan.num_prompt_tokens]
    assert sum(plan.num_prompt_tokens for plan in mixed) == 2 * LONG
    for plan in mixed:  # 2.5 times the time of three decodes is 15 tokens more, about the minimum chunk
        is_end = any(chunk.start + len(chunk.token_ids) == LONG for chunk in plan.chunks)
        assert plan.num_prompt_tokens >= MIN_CHUNK or is_end
        assert plan.num_prompt_tokens <= 1.1 * MIN_CHUNK
    assert run.engine.stats().budget.num_over_target >= len(mixed)
