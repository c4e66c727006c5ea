"""Admission rejects requests that could never run, and no others."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.admission import MAX_OUTPUT, MAX_SHOWN, DefaultLength, admit, output_limit
from app.contract.engine_status import ModelInfo
from app.contract.errors import ContextLengthExceeded, InvalidValue, KVCapacityExceeded, QuireError
from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import SamplingParams
from tests.contract.blocks_needed import num_blocks_needed

MODEL_INFO = ModelInfo("m", "r", 100, 80, 50, defaults=SamplingDefaults(temperature=0.5))
LARGE_CACHE = ModelInfo("m", "r", 100, 1000, 50)


def test_defaults_seed_and_max_tokens_are_filled_in():
    params = admit([1, 2, 3], SamplingParams(max_tokens=None), LARGE_CACHE)
    assert params.max_tokens == 97
    assert params.seed is not None
    assert 0 <= params.seed < 2**64
    assert None not in (params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty)


def test_later_changes_of_the_callers_lists_have_no_effect():
    stop, stop_token_ids, logit_bias = ["a"], [7], {8: 1.0}
    params = admit([1], SamplingParams(stop=stop, stop_token_ids=stop_token_ids, logit_bias=logit_bias), MODEL_INFO)
    stop += ["x" * 1000] * 1000
    stop_token_ids.append(10**9)
    logit_bias[10**9] = float("nan")
    assert (params.stop_strings, params.stop_token_ids, params.logit_bias) == (("a",), (7,), {8: 1.0})


def test_lists_that_changed_since_their_check_are_checked_again():
    stop = ["a"]
    params = SamplingParams(stop=stop)
    stop.append("")
    with pytest.raises(InvalidValue) as caught:
        admit([1], params, MODEL_INFO)
    assert caught.value.param == "stop"


def test_seeds_differ_unless_one_is_given():
    assert admit([1], SamplingParams(), MODEL_INFO).seed != admit([1], SamplingParams(), MODEL_INFO).seed
    assert admit([1], SamplingParams(seed=7), MODEL_INFO).seed == 7


def test_the_default_max_tokens_is_limited_by_context_and_cache():
    assert admit([1] * 10, SamplingParams(max_tokens=None), MODEL_INFO).max_tokens == 71


@pytest.mark.parametrize(
    ("length", "of_model", "expected"),
    [
        (DefaultLength(), None, 48),
        (DefaultLength(), 9, 9),
        (DefaultLength(), 99, 48),
        (DefaultLength(otherwise=16), None, 16),
        (DefaultLength(otherwise=16), 20, 20),
        (DefaultLength(otherwise=16, is_unlimited=True), 9, 48),
        (DefaultLength(context_share=0.25), 20, 16),
        (DefaultLength(context_share=0.25), 9, 9),
        (DefaultLength(context_share=0.25, is_unlimited=True), 9, 16),
        (DefaultLength(context_share=1e-9), None, 1),
        (DefaultLength(context_share=0.25, most=5), 9, 5),
        (DefaultLength(most=5, is_unlimited=True), None, 5),
    ],
)
def test_the_shortest_default_length_counts(length, of_model, expected):
    model = replace(LARGE_CACHE, max_model_len=64, defaults=SamplingDefaults(max_tokens=of_model))
    assert admit(range(1, 17), SamplingParams(max_tokens=None), model, length=length).max_tokens == expected
    assert admit([1], SamplingParams(max_tokens=50), model, length=length).max_tokens == 50


@pytest.mark.parametrize(("of_files", "expected"), [(None, 16), (9, 16), (20, 20), (99, 48)])
def test_a_share_of_the_context_yields_to_longer_answers_of_the_models_files(of_files, expected):
    model = replace(LARGE_CACHE, max_model_len=64, answer_tokens=of_files)
    for length, limit in ((DefaultLength(context_share=0.25), expected), (DefaultLength(), 48)):
        assert admit(range(1, 17), SamplingParams(max_tokens=None), model, length=length).max_tokens == limit


@pytest.mark.parametrize("share", [0, -1.0, 1.01, float("nan")])
def test_a_share_of_the_context_is_one(share):
    with pytest.raises(InvalidValue, match=r"context_share is .*; it must be a number above 0 and at most 1"):
        DefaultLength(context_share=share)


def test_the_full_context_can_be_used_but_not_exceeded():
    assert admit([1] * 60, SamplingParams(max_tokens=40), LARGE_CACHE).max_tokens == 40
    with pytest.raises(ContextLengthExceeded) as caught:
        admit([1] * 60, SamplingParams(max_tokens=41), LARGE_CACHE)
    assert caught.value.param == "max_tokens"


def test_the_full_cache_can_be_used_but_not_exceeded():
    """There are 80 slots, and the last token of an output needs none."""
    assert admit([1] * 40, SamplingParams(max_tokens=41), MODEL_INFO).max_tokens == 41
    assert admit([1] * 80, SamplingParams(max_tokens=1), MODEL_INFO).max_tokens == 1
    with pytest.raises(KVCapacityExceeded, match="exceeds the available context size, a KV cache of 80 tokens"):
        admit([1] * 40, SamplingParams(max_tokens=42), MODEL_INFO)


@pytest.mark.parametrize(
    ("num_prompt", "max_slots", "num_sequences", "num_blocks"),
    [(16, 17, 1, 2), (16, 17, 4, 5), (15, 17, 4, 8), (17, 32, 4, 5), (40, 40, 4, 6), (1, 16, 16, 16)],
)
def test_only_full_blocks_of_the_prompt_are_shared(num_prompt, max_slots, num_sequences, num_blocks):
    assert num_blocks_needed(num_prompt, max_slots, num_sequences, 16) == num_blocks


def test_the_cache_must_hold_all_choices():
    model_info = ModelInfo("m", "r", 1000, 160, 50)
    for fields in ({"n": 4}, {"best_of": 4}, {"use_beam_search": True, "beam_width": 4}):
        assert admit([1] * 20, SamplingParams(max_tokens=None, **fields), model_info).max_tokens == 29
        with pytest.raises(KVCapacityExceeded, match="4 x max_tokens 30") as caught:
            admit([1] * 20, SamplingParams(max_tokens=30, **fields), model_info)
        assert caught.value.param == "max_tokens"
    with pytest.raises(KVCapacityExceeded, match="16 x max_tokens 1 "):
        admit([1] * 20, SamplingParams(max_tokens=None, n=16), model_info)


def test_a_prompt_must_leave_space_for_a_token():
    with pytest.raises(
        ContextLengthExceeded, match="The prompt has 100 tokens, and may have at most 99; shorten it"
    ) as caught:
        admit([1] * 100, SamplingParams(), LARGE_CACHE)
    assert caught.value.param == "prompt"
    with pytest.raises(KVCapacityExceeded, match="81 tokens exceeds the available context size, a KV cache of 80"):
        admit([1] * 81, SamplingParams(), MODEL_INFO)


@pytest.mark.parametrize("prompt", [[], [-1], [50], [0, 51]])
def test_prompt_ids_must_be_in_the_vocabulary(prompt):
    with pytest.raises(InvalidValue) as caught:
        admit(prompt, SamplingParams(), MODEL_INFO)
    assert caught.value.param == "prompt"
    assert not prompt or f"the token id {prompt[-1]}; it must be between 0 and 49" in caught.value.message


@pytest.mark.parametrize("fields", [{"top_k": 51}, {"logit_bias": {50: 1.0}}, {"stop_token_ids": [50]}])
def test_parameters_must_be_within_the_vocabulary(fields):
    with pytest.raises(InvalidValue) as caught:
        admit([1], SamplingParams(**fields), MODEL_INFO)
    assert caught.value.param == next(iter(fields))


@given(
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(8, 200),
    st.integers(1, 25),
    st.integers(1, 4),
)
def test_admitted_requests_fit_context_and_cache(num_prompt, max_tokens, context, num_blocks, num_sequences):
    model_info = ModelInfo("m", "r", context, num_blocks * 8, 50, block_size=8)
    given = SamplingParams(max_tokens=max_tokens, n=num_sequences)
    try:
        params = admit([1] * num_prompt, given, model_info)
    except QuireError:
        needed = num_blocks_needed(num_prompt, num_prompt + (max_tokens or 1) - 1, num_sequences, 8)
        assert num_prompt + (max_tokens or 1) > context or needed > num_blocks
    else:
        assert params.max_tokens is not None
        assert params.max_tokens >= 1
        assert num_prompt + params.max_tokens <= context
        assert num_blocks_needed(num_prompt, num_prompt + params.max_tokens - 1, num_sequences, 8) <= num_blocks


def test_a_request_cannot_have_more_sequences_than_the_server_runs():
    model_info = ModelInfo("m", "r", 100, 80, 50, max_num_seqs=3)
    assert admit([1], SamplingParams(n=3, max_tokens=4), model_info).n == 3
    for fields, param in (
        ({"n": 4}, "n"),
        ({"best_of": 4}, "best_of"),
        ({"use_beam_search": True, "n": 4}, "beam_width"),
    ):
        with pytest.raises(InvalidValue, match="at most 3") as caught:
            admit([1], SamplingParams(max_tokens=4, **fields), model_info)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("params", "most"),
    [
        ({}, MAX_OUTPUT),
        ({"n": 16}, MAX_OUTPUT // 16),
        ({"n": 16, "logprobs": 20}, 2976),
        ({"n": 1, "best_of": 8, "logprobs": 0}, MAX_OUTPUT // 8),
        ({"n": 2, "use_beam_search": True, "beam_width": 10}, MAX_OUTPUT // 10),
    ],
)
def test_the_output_of_one_request_is_bounded(params: dict[str, object], most: int):
    assert output_limit(SamplingParams(max_tokens=None, **params)).most == most
    model_info = ModelInfo("m", "r", 10**7, 10**9, 50)
    for lengths in ({"max_tokens": most}, {"max_tokens": None}):
        given = SamplingParams(**params, **lengths)
        assert admit([1], given, model_info, output_limit(given)).max_tokens == most
    for lengths in ({"max_tokens": most + 1}, {"max_tokens": None, "min_tokens": most + 1}):
        given = SamplingParams(**params, **lengths)
        with pytest.raises(InvalidValue, match=f"at most {MAX_OUTPUT}. Lower .* to {most}") as caught:
            admit([1], given, model_info, output_limit(given))
        assert caught.value.param == list(lengths)[-1]


@pytest.mark.parametrize(("context", "num_slots", "logprobs", "kind", "room"), [
    (1000, 10**9, None, ContextLengthExceeded, 990), (10**7, 160, None, None, 151),
    (10**7, 10**9, 20, InvalidValue, MAX_OUTPUT // 21), (1000, 160, 20, None, 151),
    (160, 10**9, 20, ContextLengthExceeded, 150), (10**9, 2 * MAX_OUTPUT, None, InvalidValue, MAX_OUTPUT),
])  # fmt: skip
@pytest.mark.parametrize("value", [1, 10**8, 2**63 - 1])
@pytest.mark.parametrize("name", ["max_tokens", "min_tokens"])
def test_the_error_for_a_length_names_the_number_that_works(context, num_slots, logprobs, kind, room, value, name):
    model_info = ModelInfo("m", "r", context, num_slots, 50)

    def admitted(number: int, **options: bool) -> SamplingParams:
        given = SamplingParams(**{"max_tokens": None, "logprobs": logprobs, name: number})
        return admit([1] * 10, given, model_info, output_limit(given), **options)

    with pytest.raises(QuireError) as caught:
        admitted(max(value, room + 1))
    if kind is None:  # the KV cache is the smaller limit; a full context is named first
        kind = ContextLengthExceeded if value > context else KVCapacityExceeded
    assert type(caught.value) is kind and caught.value.param == name
    [number] = re.findall(rf"ower {name} to (\d+)", caught.value.message)
    assert int(number) == room
    assert admitted(room).max_tokens == room
    if name == "max_tokens":
        assert admitted(max(value, room + 1), is_clamped=True).max_tokens == room
    else:
        with pytest.raises(QuireError):
            admitted(room + 1, is_clamped=True)


def test_a_smaller_max_tokens_is_never_changed():
    for value in (1, 40):
        assert admit([1] * 40, SamplingParams(max_tokens=value), MODEL_INFO, is_clamped=True).max_tokens == value


def test_prompts_that_the_answer_shows_are_part_of_its_output():
    params = SamplingParams(n=2, prompt_logprobs=4, max_tokens=None)
    assert output_limit(params, num_shown_tokens=1000).most == (MAX_OUTPUT - 2 * 1000 * 5) // 2
    error = output_limit(params, num_shown_tokens=1000).error("max_tokens", 495_001)
    assert "at most 990000 besides its prompts. Lower max_tokens to 495000" in error.message
    most = MAX_SHOWN // 10
    output_limit(params, num_shown_tokens=most)
    with pytest.raises(InvalidValue, match=r"x \(1 \+ 4 prompt_logprobs\) is 500010; one answer may show") as caught:
        output_limit(params, num_shown_tokens=most + 1)
    assert caught.value.param == "prompt_logprobs"
