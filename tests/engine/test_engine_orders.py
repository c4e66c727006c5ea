"""For any order of calls, a request that does not fail has the same tokens as alone."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.events import Finished, FinishReason, RequestFailed
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from tests.cases import examples
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, generate, request
from tests.engine.execute.faulty_runner import FaultyRunner

NUM_REQUESTS = 7
NAMES = st.integers(0, NUM_REQUESTS - 1)
CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "abort", "pause", "resume", "step", "step", "step", "fail"]), NAMES),
    max_size=60,
)


class FailOnDemand(FaultyRunner):
    """Raises at the next launch if `is_due`."""

    def __init__(self) -> None:
        self.is_due = False

    def before_launch(self, plan: object) -> None:
        if self.is_due:
            self.is_due = False
            raise RuntimeError("a fault")


def request_of(engine: Engine, number: int) -> EngineRequest:
    """Request `number`: prompts of 1 to 61 tokens, greedy and seeded, with and without penalties."""
    params = {"temperature": number % 3 / 2, "seed": number, "max_tokens": 4 + 3 * number}
    if number % 2:
        params |= {"frequency_penalty": 0.8, "top_p": 0.9, "logprobs": 2}
    return request(engine, str(number), range(20 + number, 21 + 11 * number), **params)


@cache
def alone(number: int) -> tuple[int, ...]:
    """The output of request `number` without other requests."""
    engine = build(tiny("Qwen3"))
    return tuple(generate(engine, [request_of(engine, number)])[str(number)])


@settings(max_examples=examples(60))
@given(CALLS, st.sampled_from([6, 9, 40]), st.sampled_from([16, 40]))
def test_no_order_of_calls_changes_a_token(calls: list[tuple[str, int]], num_blocks: int, budget: int):
    faults = FailOnDemand()
    engine = build(
        tiny("Qwen3"), faults=faults, num_kv_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=4
    )
    run, added, failing = Run(engine), set(), 0
    for call, number in calls:
        name = str(number)
        if call == "add" and number not in added:
            added.add(number)
            run.add(request_of(engine, number))
        elif call == "step":
            run.step()
        elif call == "fail":
            faults.is_due, failing = True, failing + 1
        elif call == "abort":
            run.events += engine.abort(name, 0.0)
        elif call in ("pause", "resume"):
            getattr(engine, call)(name)
        engine.scheduler.check_integrity()
    for number in added:
        engine.resume(str(number))
    run.finish()
    check(run, added, failing)
    assert engine.stats().blocks.num_free == num_blocks
    assert engine.output.num_open == 0


def check(run: Run, added: set[int], failing: int) -> None:
    """Check that every request ended once, and that its tokens are a prefix of those that it has alone."""
    for number in added:
        tokens, end = tuple(run.tokens(str(number))), run.end(str(number))
        assert tokens == alone(number)[: len(tokens)]
        if isinstance(end, RequestFailed):
            assert failing and end.error.code == "engine_error"
        else:
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.CANCELLED or tokens == alone(number)
