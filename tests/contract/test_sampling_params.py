"""Sampling parameters: every invalid value is rejected with its name."""

import math

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    SamplingParams,
)

NUMBERS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


def test_parameters_default_to_the_models():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.2)
    params = SamplingParams().with_defaults(defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 20)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.2)


def test_given_parameters_override_the_models_defaults():
    given = SamplingParams(temperature=0.0, top_p=0.5, top_k=0, min_p=0.2, repetition_penalty=1.0)
    assert given.with_defaults(SamplingDefaults(0.6, 0.9, 20, 0.1, 1.2)) == given


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("end", ("end",)), (["a", "b"], ("a", "b")), ((), ())])
def test_stop_has_one_form(stop, strings):
    assert SamplingParams(stop=stop).stop_strings == strings


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, [], 1e9, -1e9])
def test_numbers_must_be_finite_and_in_range(name, value):
    with pytest.raises(InvalidValue, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name", ["top_k", "seed", "max_tokens", "min_tokens", "logprobs", "n", "best_of", "beam_width"]
)
@pytest.mark.parametrize("value", ["1", 1.0, True, 2**70, -(2**70)])
def test_counts_must_be_integers_in_range(name, value):
    with pytest.raises(InvalidValue, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("temperature", 0, 2),
        ("min_p", 0, 1),
        ("top_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("top_k", -1, 2**31 - 1),
        ("seed", -(2**63), 2**64 - 1),
        ("max_tokens", 1, 2**63 - 1),
        ("logprobs", 0, 20),
        ("n", 1, 16),
        ("best_of", 1, 16),
    ],
)
def test_values_at_the_limits_are_allowed_and_beyond_are_not(name, lowest, highest):
    for value in (lowest, highest):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(InvalidValue, match=name):
            SamplingParams(**{name: value})


def test_the_length_penalty_of_beams_is_bounded():
    for value in (-10, 10):
        assert SamplingParams(use_beam_search=True, length_penalty=value).length_penalty == value
    for value in (-10.1, 11, float("nan"), "1"):
        with pytest.raises(InvalidValue, match="length_penalty"):
            SamplingParams(use_beam_search=True, length_penalty=value)


@pytest.mark.parametrize("fields", [{"beam_width": 2}, {"length_penalty": 0.5}, {"early_stopping": True}])
def test_beam_parameters_need_use_beam_search(fields):
    with pytest.raises(InvalidValue, match="needs use_beam_search") as caught:
        SamplingParams(**fields)
    assert caught.value.param == next(iter(fields))


def test_a_repetition_penalty_near_0_is_rejected():
    with pytest.raises(InvalidValue, match=r"between 0\.01 and 10"):
        SamplingParams(repetition_penalty=1e-300)


@pytest.mark.parametrize("stop", [["x"] * (MAX_STOP_STRINGS + 1), "", ["a", ""], "x" * (MAX_STOP_LENGTH + 1), [1]])
def test_stop_strings_are_bounded_and_not_empty(stop):
    with pytest.raises(InvalidValue, match="stop"):
        SamplingParams(stop=stop)


def test_lists_of_token_ids_are_bounded():
    with pytest.raises(InvalidValue, match="stop_token_ids"):
        SamplingParams(stop_token_ids=range(65))
    with pytest.raises(InvalidValue, match="stop_token_ids"):
        SamplingParams(stop_token_ids=[-1])


@pytest.mark.parametrize("bias", [dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0), {-1: 0.0}, {0: 101.0}, {0: math.nan}])
def test_logit_bias_is_bounded(bias):
    with pytest.raises(InvalidValue, match="logit_bias"):
        SamplingParams(logit_bias=bias)


def test_structured_outputs_of_another_type_say_which_one_is_needed():
    with pytest.raises(InvalidValue, match=r"is a dict with 'json'; it must be a StructuredOutputs, such as"):
        SamplingParams(structured_outputs={"json": {}})


def test_min_tokens_cannot_exceed_max_tokens():
    with pytest.raises(InvalidValue, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


@pytest.mark.parametrize(
    ("fields", "num_sequences", "is_ranked", "num_logprobs"),
    [
        ({}, 1, False, None),
        ({"n": 3}, 3, False, None),
        ({"n": 3, "logprobs": 2}, 3, False, 2),
        ({"n": 2, "best_of": 2}, 2, False, None),
        ({"n": 2, "best_of": 6}, 6, True, 0),
        ({"best_of": 3, "logprobs": 2}, 3, True, 2),
        ({"use_beam_search": True}, 2, True, 4),
        ({"use_beam_search": True, "n": 5}, 5, True, 10),
        ({"use_beam_search": True, "n": 2, "beam_width": 4}, 4, True, 8),
        ({"use_beam_search": True, "beam_width": 1}, 1, True, 2),
    ],
)
def test_numbers_of_sequences_and_logprobs_of_each_kind_of_request(fields, num_sequences, is_ranked, num_logprobs):
    params = SamplingParams(**fields)
    assert (params.num_sequences, params.is_ranked, params.num_sampled_logprobs) == (
        num_sequences, is_ranked, num_logprobs,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 3, "use_beam_search": True, "beam_width": 2}, "beam_width"),
        ({"beam_width": 4}, "beam_width"),
        ({"use_beam_search": True, "beam_width": 17}, "beam_width"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"early_stopping": None}, "early_stopping"),
        ({"repetition_stop": 1}, "repetition_stop"),
        ({"repetition_stop": None}, "repetition_stop"),
    ],
)
def test_conflicting_choices_and_beams_are_rejected_by_name(fields, param):
    with pytest.raises(InvalidValue, match=param) as caught:
        SamplingParams(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_early_stopping_has_three_values(early_stopping):
    assert SamplingParams(use_beam_search=True, early_stopping=early_stopping).early_stopping == early_stopping


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 2),
        ("logprobs", 1),
        ("logit_bias", {1: 1.0}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("stop", "x"),
        ("repetition_stop", True),
        ("temperature", 0.5),
        ("top_p", 0.5),
        ("top_k", 5),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
    ],
)
def test_sampling_parameters_are_unsupported_with_beam_search(name, value):
    with pytest.raises(UnsupportedParameter) as caught:
        SamplingParams(use_beam_search=True, **{name: value})
    assert caught.value.param == name


def test_beam_search_accepts_neutral_values_and_ignores_the_models_defaults():
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    given = SamplingParams(use_beam_search=True, **neutral)
    defaults = SamplingDefaults(0.6, 0.9, 20, 0.1, 1.2)
    assert SamplingParams(use_beam_search=True).with_defaults(defaults) == given == given.with_defaults(defaults)


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 1, "use_beam_search": True}])
def test_unsupported_parameters_are_rejected(fields):
    with pytest.raises(UnsupportedParameter) as caught:
        SamplingParams(**fields)
    assert caught.value.param == next(iter(fields))
