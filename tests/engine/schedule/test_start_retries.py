"""A group that lacks blocks is not looked up in every step, and starts as soon as blocks suffice."""

from dataclasses import replace

import pytest

from app.engine.schedule.kv.prefix_cache import PrefixCache
from app.engine.schedule.sequence import WAITING
from tests.engine.schedule.fake_model import Driver, make_request


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_group_that_waits_for_a_fence_starts_right_after_it(run_ahead):
    driver = Driver(num_blocks=10, run_ahead=run_ahead, enable_prefix_caching=False, max_model_len=64)
    driver.add(4, max_tokens=30)
    driver.add(16, max_tokens=8)
    driver.steps(4)
    driver.scheduler.pause("r2")
    waiting = driver.add(16, max_tokens=4)
    assert driver.run_until(lambda: waiting.status is not WAITING) <= 1 + run_ahead


def test_a_group_with_the_same_prompt_starts_when_it_is_cached():
    driver = Driver(num_blocks=44, max_num_batched_tokens=128, max_model_len=200)
    prompt = make_request("x", 129, 20)
    driver.scheduler.add(replace(prompt, id="r1"))
    second = driver.scheduler.add(replace(prompt, id="r2"))
    assert driver.run_until(lambda: second.status is not WAITING) <= 3


def test_a_long_prompt_that_does_not_fit_is_not_looked_up_in_every_step(monkeypatch):
    driver = Driver(num_blocks=200, max_model_len=1000, max_num_batched_tokens=1000)
    long = make_request("long", 600, 100)
    driver.scheduler.add(replace(long, id="first", params=replace(long.params, max_tokens=1)))
    driver.run(max_steps=40)  # now the prompt is cached
    driver.add(400, max_tokens=60)
    driver.step()
    waiting = driver.scheduler.add(long)
    driver.step()
    calls = 0
    find = PrefixCache.find

    def counted(cache, content):
        nonlocal calls
        calls += 1
        return find(cache, content)

    monkeypatch.setattr(PrefixCache, "find", counted)
    driver.steps(20)
    assert waiting.status is WAITING and calls <= 40  # at most two lookups per step: device and host
