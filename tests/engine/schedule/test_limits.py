"""Limits: valid ranges, and requests that can never run."""

import pytest

from app.config.settings import make_config
from app.contract.errors import ConfigurationError, ContextLengthExceeded, InvalidValue, KVCapacityExceeded
from app.engine.schedule.limits import max_logit_rows
from app.engine.schedule.scheduler import Scheduler
from tests.engine.schedule.fake_groups import make_prompt_request
from tests.engine.schedule.fake_model import Driver, make_limits, make_request
from tests.engine.schedule.open_requests import num_open

AT_LEAST_ONE = ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"]
MAY_BE_OFF = ["run_ahead", "num_host_blocks", "itl_target", "speculative_ngram"]


@pytest.mark.parametrize("name, lowest", [*((name, 1) for name in AT_LEAST_ONE), *((name, 0) for name in MAY_BE_OFF)])
def test_an_invalid_limit_is_rejected_by_name(name, lowest):
    assert getattr(make_limits(**{name: lowest}), name) == lowest
    with pytest.raises(ConfigurationError, match=f"{name} is {lowest - 1}; it must be at least {lowest}") as error:
        make_limits(**{name: lowest - 1})
    assert error.value.param == name


def test_no_more_sequences_run_than_a_step_has_tokens():
    assert make_limits(max_num_seqs=8, max_num_batched_tokens=3).max_running == 3
    assert make_limits(max_num_seqs=2, max_num_batched_tokens=3).max_running == 2


def test_logit_rows_suffice_for_all_sequences_and_one_draft():
    assert max_logit_rows(make_limits(max_num_seqs=8)) == 8
    assert max_logit_rows(make_limits(max_num_seqs=8, speculative_ngram=5)) == 13
    assert max_logit_rows(make_limits(max_num_seqs=8, speculative_ngram=5, max_num_batched_tokens=10)) == 10
    given = {"max_num_seqs": 9, "speculative_ngram": 4, "max_num_batched_tokens": 512}
    assert max_logit_rows(make_config(given).scheduler) == max_logit_rows(make_limits(**given)) == 13


@pytest.mark.parametrize(
    "num_prompt, max_tokens, params, error, param",
    [
        (0, 4, {}, InvalidValue, "prompt"),
        (30, 11, {}, ContextLengthExceeded, "max_tokens"),
        (30, 4, {}, KVCapacityExceeded, "max_tokens"),
        (33, 1, {}, KVCapacityExceeded, "max_tokens"),
        (8, 13, {"n": 2}, None, None),
        (8, 14, {"n": 2}, KVCapacityExceeded, "max_tokens"),
        (8, 14, {"use_beam_search": True}, KVCapacityExceeded, "max_tokens"),
        (8, 14, {"best_of": 2}, KVCapacityExceeded, "max_tokens"),
        (4, 4, {"n": 6}, InvalidValue, "n"),
        (4, 4, {"best_of": 6}, InvalidValue, "best_of"),
        (4, 4, {"use_beam_search": True, "beam_width": 6}, InvalidValue, "beam_width"),
    ],
)
def test_a_request_that_never_fits_is_rejected_and_changes_nothing(num_prompt, max_tokens, params, error, param):
    scheduler = Scheduler(make_limits(num_blocks=8, max_model_len=40, max_num_seqs=5))
    request = make_request("a", num_prompt, max_tokens, **params)
    if error is None:
        scheduler.add(request)
        return
    with pytest.raises(error) as raised:
        scheduler.add(request)
    assert raised.value.param == param and not num_open(scheduler)
    scheduler.check_integrity()


def test_the_error_has_given_and_allowed_values_and_advice():
    scheduler = Scheduler(make_limits(num_blocks=8))
    with pytest.raises(KVCapacityExceeded) as error:
        scheduler.add(make_request("a", 20, 30, n=2))
    message = str(error.value)
    assert (
        "20 prompt tokens + 2 x max_tokens 30" in message and "32 tokens" in message and "shorten the prompt" in message
    )


@pytest.mark.parametrize("num_prompt, max_tokens", [(32, 1), (30, 3), (1, 32)])
def test_a_request_that_just_fits_alone_finishes(num_prompt, max_tokens):
    driver = Driver(num_blocks=8, max_model_len=33)
    driver.add(num_prompt, max_tokens)
    driver.run(max_steps=40)


def test_pinned_blocks_are_not_available_to_requests():
    driver = Driver(num_blocks=8)
    driver.scheduler.add(make_prompt_request("a", range(9), 1))
    driver.run(max_steps=3)
    assert driver.scheduler.pin(make_prompt_request("pin", range(9))) == 8
    with pytest.raises(KVCapacityExceeded):
        driver.add(24, max_tokens=2)
    driver.add(24, max_tokens=1)
    driver.run(max_steps=3)
