"""Prompts with the step costs of an 8B model, in virtual time: with any target, and beside a long prompt."""

from statistics import median

import pytest

from tests.simulation.machines import GPU, MACHINES, TARGET_S
from tests.simulation.prompt_time import StepCosts, TimedScheduler

NUM_CLIENTS = 8


def warm(costs: StepCosts, max_tokens: int, itl_target: float = TARGET_S) -> TimedScheduler:
    """Return a scheduler that has learned the step costs."""
    timed = TimedScheduler(costs, itl_target, max_tokens)
    for num_prompt in (300, 40, 700):
        timed.run_clients(2, num_prompt, 12)
    return timed


@pytest.mark.parametrize(("num_prompt", "num_new"), [(25, 200), (200, 32), (200, 200)])
@MACHINES
def test_with_a_target_eight_clients_end_nearly_as_soon_as_without(costs, max_tokens, num_prompt, num_new):
    ends = []
    for itl_target in (TARGET_S, 0.0):
        timed = warm(costs, max_tokens, itl_target)
        began = timed.now
        clients = timed.run_clients(NUM_CLIENTS, num_prompt, num_new)
        ends.append(timed.now - began)
        if itl_target:
            gaps = sorted(gap for client in clients for gap in client.gaps)
    decode_s = costs.seconds(NUM_CLIENTS, NUM_CLIENTS * (num_prompt + num_new))
    assert ends[0] <= 1.3 * ends[1]
    assert gaps[int(0.99 * len(gaps))] <= max(2.5 * decode_s, 1.3 * TARGET_S)


def times_to_first_token(timed: TimedScheduler, count: int, every_s: float) -> list[float]:
    """Add a prompt of 400 tokens from time to time; return the times to their first tokens."""
    waits = []
    for number in range(count):
        due = timed.now + every_s * (0.8 + 0.4 * ((number * 7) % 10) / 10)
        while timed.now < due:
            timed.step()
        short = timed.add(f"short {len(timed.times)}", 400, 1)
        timed.run(short)
        waits.append(timed.now - due)
    return waits


@MACHINES
def test_a_short_prompt_is_fast_beside_a_long_one(costs, max_tokens):
    timed = warm(costs, max_tokens)
    timed.run(*(timed.add(f"client {number}", 32, 20_000) for number in range(NUM_CLIENTS)))
    pause_s = 60 * costs.constant
    quiet = times_to_first_token(timed, 20, pause_s)
    long = timed.add("long", 250_000, 1)
    beside = times_to_first_token(timed, 20, pause_s)
    assert not long.tokens
    assert median(beside) <= 3 * median(quiet)
    assert max(beside) <= 6 * median(quiet)


@pytest.mark.parametrize("costs", [GPU])
def test_a_long_prompt_progresses_beside_short_ones(costs):
    seconds = []
    for has_short in (False, True):
        timed = warm(costs, 2048)
        timed.run(*(timed.add(f"client {number}", 32, 20_000) for number in range(NUM_CLIENTS)))
        long, next_s = timed.add("long", 250_000, 1), timed.now
        while not long.tokens:
            if has_short and timed.now >= next_s:
                timed.add(f"short {len(timed.times)}", 400, 1)
                next_s += 1.0
            timed.step()
        seconds.append(long.to_first)
    assert seconds[1] <= 1.5 * seconds[0]
