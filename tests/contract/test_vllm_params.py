"""Keywords of vLLM's SamplingParams that are not built."""

from dataclasses import replace

import pytest

from app.contract.errors import UnsupportedParameter
from app.contract.sampling_params import SamplingParams
from app.contract.vllm_params import VLLM_PARAMS

DEFAULTS = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "detokenize": True,
    "include_stop_str_in_output": False,
    "bad_words": None,
    "allowed_token_ids": None,
    "logits_processors": None,
    "truncate_prompt_tokens": None,
    "guided_decoding": None,
    "output_kind": 0,
    "flat_logprobs": False,
    "skip_reading_prefix_cache": None,
    "extra_args": None,
}
"""As vLLM has them."""

OTHERS = {
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "bad_words": ["word"],
    "allowed_token_ids": [1],
    "logits_processors": [print],
    "truncate_prompt_tokens": 4,
    "guided_decoding": {"json": "{}"},
    "flat_logprobs": True,
    "extra_args": {"a": 1},
}


def test_the_defaults_of_vllm_are_accepted_and_not_kept():
    assert set(DEFAULTS) == set(VLLM_PARAMS)
    assert SamplingParams(temperature=0.8, top_p=0.95, **DEFAULTS) == SamplingParams(temperature=0.8, top_p=0.95)


@pytest.mark.parametrize("name", OTHERS)
def test_values_that_would_change_the_answer_are_refused_by_name_with_what_to_do(name):
    with pytest.raises(UnsupportedParameter, match=rf"^{name} is .*; leave it out: .") as caught:
        SamplingParams(**{name: OTHERS[name]})
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - set(OTHERS)))
def test_values_that_change_no_answer_are_accepted(name):
    assert SamplingParams(**{name: False}) == SamplingParams()


@pytest.mark.parametrize("value", [1, "true", None])
def test_only_true_is_true(value):
    with pytest.raises(UnsupportedParameter):
        SamplingParams(skip_special_tokens=value)


def test_parameters_are_replaced_as_before():
    assert replace(SamplingParams(skip_special_tokens=True), seed=1) == SamplingParams(seed=1)
