"""An 8B model's step costs in virtual time: prompts that get on, whatever the target, and beside a long one."""

from statistics import median

import pytest

from tests.simulation.prompt_time import StepCosts, TimedScheduler

TARGET_S = 0.05
# 16 GB of weights are read in each step and 16 GFLOP done for each token: at 4 TB/s and half of a petaflop/s; at
# 40 GB/s and four teraflop/s; and a quarter of the bytes, with one teraflop/s.
GPU, CPU, CPU_INT4 = StepCosts(3.2e-5, 1.5e-9, 0.0055), StepCosts(0.004, 2.5e-7, 0.4), StepCosts(0.016, 1e-6, 0.11)
MACHINES = pytest.mark.parametrize(
    ("costs", "max_tokens"), [(GPU, 2048), (CPU, 512), (CPU_INT4, 512)], ids=["GPU", "CPU", "CPU, INT4"]
)
NUM_CLIENTS = 8


def warm(costs: StepCosts, max_tokens: int, itl_target: float = TARGET_S) -> TimedScheduler:
    """Return a scheduler that has learned what steps cost."""
    timed = TimedScheduler(costs, itl_target, max_tokens)
    for num_prompt in (300, 40, 700):
        timed.answer(2, num_prompt, 12)
    return timed


@pytest.mark.parametrize(("num_prompt", "num_new"), [(25, 200), (200, 32), (200, 200)])
@MACHINES
def test_eight_clients_are_answered_nearly_as_soon_as_without_a_target(costs, max_tokens, num_prompt, num_new):
    ends = []
    for itl_target in (TARGET_S, 0.0):
        timed = warm(costs, max_tokens, itl_target)
        began = timed.now
        clients = timed.answer(NUM_CLIENTS, num_prompt, num_new)
        ends.append(timed.now - began)
        if itl_target:
            gaps = sorted(gap for client in clients for gap in client.gaps)
    decode_s = costs.seconds(NUM_CLIENTS, NUM_CLIENTS * (num_prompt + num_new))
    assert ends[0] <= 1.3 * ends[1]
    assert gaps[int(0.99 * len(gaps))] <= max(2.5 * decode_s, 1.3 * TARGET_S)


def first_tokens(timed: TimedScheduler, count: int, every_s: float) -> list[float]:
    """Let a prompt of 400 tokens come now and then; return how long each waits for its first token."""
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
def test_beside_a_long_prompt_a_short_one_is_answered_soon(costs, max_tokens):
    timed = warm(costs, max_tokens)
    timed.run(*(timed.add(f"client {number}", 32, 20_000) for number in range(NUM_CLIENTS)))
    pause_s = 60 * costs.constant
    quiet = first_tokens(timed, 20, pause_s)
    long = timed.add("long", 250_000, 1)
    beside = first_tokens(timed, 20, pause_s)
    assert not long.tokens
    assert median(beside) <= 3 * median(quiet)
    assert max(beside) <= 6 * median(quiet)


@pytest.mark.parametrize("costs", [GPU])
def test_the_long_one_gets_on_beside_short_ones(costs):
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
