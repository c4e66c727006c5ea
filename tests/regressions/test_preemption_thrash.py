"""With a pool that is far too small the server is slow but never stuck, and reports which requests were preempted.

Others: vllm#18115 (speed collapses), vllm#15996 (empty schedules for ever), vllm#25538 and vllm#42827 (preempted
requests and their cost cannot be identified). The deadlock with deferred frees (vllm-ascend#16315) is a scenario of
tests/simulation/test_peers.py.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from app.contract.events import Finished
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.schedule.step_cost import StepCost
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request
from tests.regressions.running_server import run_server

BUDGET = 16
NUM_BLOCKS = 40
NUM_REQUESTS = 18


def oversubscribed(built: Engine) -> list[EngineRequest]:
    """Short prompts and long outputs: many requests start, and then need three times the pool."""
    rng = random.Random(0)
    requests = []
    for number in range(NUM_REQUESTS):
        prompt = rng.choices(range(4, 290), k=rng.randrange(1, 20))
        params = {"n": 3, "temperature": 1.0, "seed": number} if number % 3 == 2 else {}
        max_tokens = rng.randrange(20, 50) if params else rng.randrange(60, 150)
        requests.append(request(built, str(number), prompt, max_tokens=max_tokens, **params))
    return requests


class VictimChecker:
    """Checks that a victim has gained a token since its last preemption, and is not the first in order."""

    def __init__(self, engine: Engine) -> None:
        self._groups = engine.scheduler._groups
        self._last: dict[str, tuple[int, int]] = {}  # by request: preemptions, and tokens at the last of them
        self._oldest = ""  # before the step

    def check(self, *, oldest_is_first: bool) -> None:
        """Compare with the state after the previous step."""
        for name, group in self._groups.items():
            num_tokens = sum(len(sequence.output_token_ids) for sequence in group.sequences)
            num_preemptions, num_then = self._last.get(name, (0, -1))
            if group.num_preemptions > num_preemptions:
                assert num_tokens > num_then, f"{name} was preempted twice without gaining a token"
                assert name != self._oldest or not oldest_is_first, f"{name} was the first in order"
                self._last[name] = (group.num_preemptions, num_tokens)
        self._oldest = next(iter(self._groups), "")


@pytest.mark.parametrize(("policy", "swap_space"), [("fcfs", 0), ("fcfs", 2**20), ("sjf", 0)])
def test_under_many_preemptions_requests_progress_and_lost_tokens_are_reported(
    policy: str, swap_space: int, monkeypatch: pytest.MonkeyPatch
):
    # A model this small is recomputed faster than its blocks are copied, so swapping is only chosen if costs are
    # unknown.
    monkeypatch.setattr(StepCost, "is_known", property(lambda cost: False))
    built = build(
        tiny("Llama"), num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=BUDGET, max_num_seqs=16, itl_target=0.0,
        scheduling_policy=policy, swap_space=swap_space, enable_prefix_caching=False,
    )  # fmt: skip
    run, victims, num_idle, requests = Run(built), VictimChecker(built), 0, oversubscribed(built)
    # The first request in order recomputes all its tokens within this many steps, and then gains its next one.
    most = max(len(each.prompt_token_ids) + each.params.n * (each.params.max_tokens or 0) for each in requests)
    run.add(*requests)
    while built.has_ready_work:
        num_before = len(run.events)
        run.step()
        victims.check(oldest_is_first=policy == "fcfs")
        num_idle = 0 if len(run.events) > num_before else num_idle + 1
        assert num_idle <= -(-most // BUDGET), "no request gained a token or ended"
    stats = built.stats()
    ends = [[event for event in run.of(each.id) if isinstance(event, Finished)] for each in requests]
    usages = [[end.usage for end in group] for group in ends]
    assert stats.preemption.num_preemptions >= 10, "too few preemptions"
    one_by_one = sum(each.params.max_tokens or 0 for each in requests)
    assert stats.step < one_by_one, "slower than running the requests one by one"
    assert sum(max(usage.preemptions for usage in group) for group in usages) == stats.preemption.num_preemptions
    assert sum(max(usage.lost_tokens for usage in group) for group in usages) == stats.starts.num_lost_tokens
    assert (stats.preemption.num_swaps if swap_space else stats.starts.num_lost_tokens) > 0


async def test_lost_tokens_are_in_the_log_line_of_the_request_and_in_the_metrics():
    """The same numbers in the log lines of the requests, in the engine's counters and in the computed tokens."""
    async with run_server(num_kv_blocks=12, max_num_seqs=8, enable_prefix_caching=False) as server:
        bodies = [{"prompt": list(range(10 + i, 30 + i)), "max_tokens": 100} for i in range(8)]
        answers = await asyncio.gather(*(server.complete(**body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * 8
        lines = [line for line in server.log.records if line["path"] == "/v1/completions"]
        num_preemptions = sum(line.get("preemptions", 0) for line in lines)
        num_lost = sum(line.get("lost_tokens", 0) for line in lines)
        assert len(lines) == 8 and num_preemptions > 0 and num_lost > 0
        assert not any(line.get("preemptions") for line in lines[:1]), "the first request is never preempted"
        assert await server.metric("vllm:num_preemptions_total") == num_preemptions
        assert await server.metric("quire_lost_tokens_total") == num_lost
        computed = await server.metric("quire_step_tokens_sum")
        assert computed == 8 * (20 + 100 - 1) + num_lost
