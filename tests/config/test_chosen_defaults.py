"""The sampling defaults of a model: who says them, in which order, and what settings replace."""

from dataclasses import replace

import pytest

from app.config.chosen_defaults import SampledModel, read_settings, sampling_defaults
from app.config.sampling_config import SamplingConfig
from app.config.settings import make_config
from app.contract.errors import ConfigurationError
from app.contract.sampling_defaults import DefaultSource, SamplingDefaults

SMOLLM2 = SampledModel("LlamaForCausalLM", ("SmolLM2 135M Instruct",), {}, is_gguf=True, can_chat=True)
UNKNOWN = SMOLLM2._replace(names=("mine",))
FILE, PUBLISHER, LLAMA, OPENAI, SETTING = (
    DefaultSource.FILE, DefaultSource.PUBLISHER, DefaultSource.LLAMA_CPP, DefaultSource.OPENAI, DefaultSource.SETTING,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "expected", "sources"),
    [
        (
            SMOLLM2._replace(own={"temperature": 0.6, "top_k": 20}),
            SamplingDefaults(temperature=0.6, top_k=20),
            {"temperature": FILE, "top_k": FILE},
        ),
        (
            SMOLLM2._replace(own={"repetition_penalty": 1.1}),
            SamplingDefaults(temperature=0.2, top_p=0.9, repetition_penalty=1.1),
            {"repetition_penalty": FILE, "temperature": PUBLISHER, "top_p": PUBLISHER},
        ),
        (SMOLLM2, SamplingDefaults(0.2, 0.9), {"temperature": PUBLISHER, "top_p": PUBLISHER}),
        (
            UNKNOWN,
            SamplingDefaults(0.8, 0.95, 40, 0.05),
            dict.fromkeys(("temperature", "top_p", "top_k", "min_p"), LLAMA),
        ),
        (UNKNOWN._replace(is_gguf=False), SamplingDefaults(), {"temperature": OPENAI, "top_p": OPENAI}),
    ],
    ids=["file", "file without a temperature", "publisher", "llama.cpp", "nobody"],
)
def test_the_first_that_says_a_temperature_says_all(model, expected, sources):
    found = sampling_defaults(SamplingConfig(), model)
    assert found == expected
    assert found.sources == sources


def test_a_model_that_cannot_chat_is_not_the_one_that_is_recommended_for():
    assert sampling_defaults(SamplingConfig(), SMOLLM2._replace(can_chat=False)) == SamplingDefaults(
        0.8, 0.95, 40, 0.05
    )


@pytest.mark.parametrize(
    ("own", "settings", "thinking", "without"),
    [
        ({}, {}, SamplingDefaults(0.6, 0.95, 20), SamplingDefaults(0.7, 0.8, 20)),
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {},
            SamplingDefaults(0.6, 0.95, 20), SamplingDefaults(0.7, 0.8, 20),
        ),
        ({"temperature": 0.3, "top_p": 0.95}, {}, SamplingDefaults(0.3, 0.95), None),
        (
            {}, {"default_temperature": 0.5, "default_max_tokens": 9},
            SamplingDefaults(0.5, 0.95, 20, max_tokens=9), SamplingDefaults(0.5, 0.8, 20, max_tokens=9),
        ),
        ({}, {"generation_config": "vllm"}, SamplingDefaults(), None),
    ],
    ids=["publisher", "the file repeats the publisher", "the file says others", "settings", "vllm"],
)  # fmt: skip
def test_answers_without_thinking_have_the_values_that_are_recommended_for_them(own, settings, thinking, without):
    model = SampledModel("Qwen3ForCausalLM", ("Qwen3 0.6B",), own, is_gguf=True, can_chat=True)
    found = sampling_defaults(make_config(settings).sampling, model)
    assert replace(found, without_thinking=None) == thinking
    assert found.without_thinking == without


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"generation_config": "vllm"}, SamplingDefaults()),
        ({"override_generation_config": '{"top_k": 5}'}, SamplingDefaults(0.2, 0.9, 5)),
        ({"override_generation_config": '{"top_k": null}'}, SamplingDefaults(0.2, 0.9)),
        ({"override_generation_config": '{"max_new_tokens": 50}'}, SamplingDefaults(0.2, 0.9, max_tokens=50)),
        ({"generation_config": "vllm", "override_generation_config": '{"top_p": 0.9}'}, SamplingDefaults(top_p=0.9)),
        ({"default_temperature": 0.5}, SamplingDefaults(0.5, 0.9)),
        ({"default_temperature": 1}, SamplingDefaults(1.0, 0.9)),
        (
            {"default_top_p": 1.0, "default_top_k": 7, "default_min_p": 0.1, "default_repetition_penalty": 1.2,
             "default_max_tokens": 99},
            SamplingDefaults(0.2, 1.0, 7, 0.1, 1.2, 99),
        ),
        (
            {"default_temperature": 0.5, "override_generation_config": '{"temperature": 0.5, "top_k": 3}'},
            SamplingDefaults(0.5, 0.9, 3),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_settings_replace_single_values(settings, expected):
    assert sampling_defaults(make_config(settings).sampling, SMOLLM2) == expected


def test_each_value_names_its_source_for_people():
    defaults = sampling_defaults(SamplingConfig(default_temperature=0.5, default_max_tokens=99), SMOLLM2)
    assert str(defaults) == "temperature 0.5, max tokens 99 (a setting); top-p 0.9 (recommended by its publisher)"
    assert str(SamplingDefaults()) == ""
    qwen = SampledModel("Qwen3ForCausalLM", ("Qwen3 0.6B",), {"temperature": 0.6}, is_gguf=False, can_chat=True)
    assert str(sampling_defaults(SamplingConfig(), qwen)) == (
        "temperature 0.6 (from the model's files); without thinking: temperature 0.7, top-p 0.8, top-k 20, min-p 0 "
        "(recommended by its publisher)"
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "1", '{"seed": 1}', '{"top_p": 2}', '{"temperature": "hot"}', "[" * 9999]
)
def test_what_is_no_object_of_sampling_defaults_is_rejected(text):
    with pytest.raises(ConfigurationError, match="override_generation_config"):
        read_settings(SamplingConfig(override_generation_config=text))
    with pytest.raises(ConfigurationError) as caught:
        make_config({"override_generation_config": text})
    assert caught.value.param == "override_generation_config"


def test_two_settings_that_contradict_each_other_are_rejected():
    with pytest.raises(ConfigurationError) as caught:
        make_config({"default_top_p": 0.5, "override_generation_config": '{"top_p": 0.9}'})
    assert caught.value.param == "default_top_p"
    assert caught.value.message == (
        "default_top_p is 0.5, and override_generation_config says 0.9; leave one of them out."
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("default_temperature", 2.5, "a number between 0 and 2"),
        ("default_top_p", float("nan"), "a number between 0 and 1"),
        ("default_min_p", "x", "a number between 0 and 1"),
        ("default_repetition_penalty", 0.001, "a number between 0.01 and 10"),
        ("default_top_k", 1.5, "an integer between -1 and 2147483647"),
        ("default_max_tokens", 0, "an integer, at least 1"),
    ],
)
def test_a_default_outside_the_bounds_of_requests_is_rejected(name, value, allowed):
    with pytest.raises(ConfigurationError) as caught:
        make_config({name: value})
    assert caught.value.message == f"{name} is {value!r}; it must be {allowed}."
