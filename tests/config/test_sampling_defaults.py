"""The sampling defaults of a model, by its files and two settings."""

import pytest

from app.config.sampling_defaults import read_override, sampling_defaults
from app.config.settings import ModelConfig, make_config
from app.contract.errors import ConfigurationError
from app.contract.sampling_params import SamplingDefaults

OWN = SamplingDefaults(temperature=0.6, top_k=20)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, OWN),
        ({"generation_config": "vllm"}, SamplingDefaults()),
        ({"override_generation_config": '{"top_k": 5}'}, SamplingDefaults(temperature=0.6, top_k=5)),
        ({"override_generation_config": '{"top_k": null}'}, OWN),
        ({"generation_config": "vllm", "override_generation_config": '{"top_p": 0.9}'}, SamplingDefaults(top_p=0.9)),
    ],
    ids=str,
)
def test_settings_replace_the_defaults_of_the_files(settings, expected):
    assert sampling_defaults(ModelConfig(**settings), OWN) == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "1", '{"seed": 1}', '{"top_p": 2}', '{"temperature": "hot"}', "[" * 9999]
)
def test_what_is_no_object_of_sampling_defaults_is_rejected(text):
    with pytest.raises(ConfigurationError, match="override_generation_config"):
        read_override(text)
    with pytest.raises(ConfigurationError) as caught:
        make_config({"override_generation_config": text})
    assert caught.value.param == "override_generation_config"
