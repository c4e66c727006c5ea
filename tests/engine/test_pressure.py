"""Pressure: waits that fewer requests would shorten count, waits for a single long prompt do not."""

from dataclasses import replace

import pytest

from app.engine.brownout import RISE_S, WAITS_S, Brownout
from tests.checkpoints import tiny
from tests.engine.driving import build, request

STEP_S = 6.0  # more than the first level's wait


@pytest.mark.parametrize(
    ("prompts", "is_pressure"),
    [((200,), False), ((100, 60), True)],
    ids=["one long prompt", "two prompts"],
)
def test_waiting_for_one_long_prompt_is_no_pressure(prompts, is_pressure):
    engine = build(tiny(), num_kv_blocks=16, block_size=16, max_num_batched_tokens=8, max_num_seqs=4)
    engine.brownout = Brownout()
    levels = set()
    for number, length in enumerate(prompts):
        engine.add(request(engine, f"long {number}", range(number, number + length), max_tokens=1))
        engine.step(0.0)
    engine.add(request(engine, "next", range(50, 150), max_tokens=1))
    for step in range(40):
        if not engine.scheduler.queues.waiting:
            break
        engine.step(step * STEP_S)
        levels.add(engine.brownout.level)
    assert not engine.scheduler.queues.waiting
    assert (max(levels) > 0) == is_pressure


def test_what_came_to_an_earlier_process_has_waited_for_this_engine_only():
    engine = build(tiny(), num_kv_blocks=16, max_num_seqs=1)
    engine.brownout = Brownout()
    engine.add(request(engine, "first", range(10), max_tokens=60))
    engine.add(replace(request(engine, "next", range(10), max_tokens=1), arrival_time=-1000.0))
    levels = []
    for step in range(40):
        engine.step(100.0 + step / 2)
        levels.append(engine.brownout.level)
    assert levels.index(1) == (WAITS_S[0] + RISE_S) * 2 + 1
