"""Pressure: waits that fewer requests would shorten count, waits for a single long prompt do not."""

import pytest

from app.engine.brownout import Brownout
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
