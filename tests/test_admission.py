"""Admission: what could never be answered is refused at the door, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admission import admit
from app.errors import ContextLengthExceeded, InvalidValue, KVCapacityExceeded, QuireError
from app.messages import ModelCard
from app.params import SamplingDefaults, SamplingParams

CARD = ModelCard("m", "r", 100, 80, 50, defaults=SamplingDefaults(temperature=0.5))
ROOMY = ModelCard("m", "r", 100, 1000, 50)


def test_defaults_seed_and_max_tokens_are_filled_in():
    params = admit([1, 2, 3], SamplingParams(max_tokens=None), ROOMY)
    assert params.max_tokens == 97
    assert params.seed is not None
    assert 0 <= params.seed < 2**64
    assert None not in (params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty)


def test_what_the_caller_does_with_its_lists_afterwards_changes_nothing():
    stop, stop_token_ids, logit_bias = ["a"], [7], {8: 1.0}
    params = admit([1], SamplingParams(stop=stop, stop_token_ids=stop_token_ids, logit_bias=logit_bias), CARD)
    stop += ["x" * 1000] * 1000
    stop_token_ids.append(10**9)
    logit_bias[10**9] = float("nan")
    assert (params.stop_strings, params.stop_token_ids, params.logit_bias) == (("a",), (7,), {8: 1.0})


def test_what_the_caller_has_done_with_its_lists_since_the_check_is_checked_again():
    stop = ["a"]
    params = SamplingParams(stop=stop)
    stop.append("")
    with pytest.raises(InvalidValue) as caught:
        admit([1], params, CARD)
    assert caught.value.param == "stop"


def test_seeds_differ_unless_one_is_given():
    assert admit([1], SamplingParams(), CARD).seed != admit([1], SamplingParams(), CARD).seed
    assert admit([1], SamplingParams(seed=7), CARD).seed == 7


def test_open_max_tokens_is_what_the_smaller_of_context_and_cache_leaves():
    assert admit([1] * 10, SamplingParams(max_tokens=None), CARD).max_tokens == 70


def test_the_whole_context_may_be_used_and_not_one_token_more():
    assert admit([1] * 60, SamplingParams(max_tokens=40), ROOMY).max_tokens == 40
    with pytest.raises(ContextLengthExceeded) as caught:
        admit([1] * 60, SamplingParams(max_tokens=41), ROOMY)
    assert caught.value.param == "max_tokens"


def test_the_whole_cache_may_be_used_and_not_one_token_more():
    assert admit([1] * 40, SamplingParams(max_tokens=40), CARD).max_tokens == 40
    with pytest.raises(KVCapacityExceeded):
        admit([1] * 40, SamplingParams(max_tokens=41), CARD)


def test_a_prompt_must_leave_room_for_an_answer():
    with pytest.raises(ContextLengthExceeded) as caught:
        admit([1] * 100, SamplingParams(), ROOMY)
    assert caught.value.param == "prompt"
    with pytest.raises(KVCapacityExceeded):
        admit([1] * 80, SamplingParams(), CARD)


@pytest.mark.parametrize("prompt", [[], [-1], [50], [0, 51]])
def test_prompts_are_made_of_the_vocabulary(prompt):
    with pytest.raises(InvalidValue) as caught:
        admit(prompt, SamplingParams(), CARD)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("fields", [{"top_k": 51}, {"logit_bias": {50: 1.0}}, {"stop_token_ids": [50]}])
def test_parameters_stay_inside_the_vocabulary(fields):
    with pytest.raises(InvalidValue) as caught:
        admit([1], SamplingParams(**fields), CARD)
    assert caught.value.param == next(iter(fields))


@given(
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(8, 200),
    st.integers(8, 200),
)
def test_what_is_admitted_fits_context_and_cache(num_prompt, max_tokens, context, capacity):
    card = ModelCard("m", "r", context, capacity, 50)
    try:
        params = admit([1] * num_prompt, SamplingParams(max_tokens=max_tokens), card)
    except QuireError:
        assert num_prompt + (max_tokens or 1) > min(context, capacity)
    else:
        assert params.max_tokens is not None
        assert params.max_tokens >= 1
        assert num_prompt + params.max_tokens <= min(context, capacity)
