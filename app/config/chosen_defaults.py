"""The sampling defaults of a model: what the settings, its files, its publisher, llama.cpp and OpenAI say, in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from app.config.recommendations import recommendation
from app.contract.errors import ConfigurationError, InvalidValue
from app.contract.sampling_defaults import DEFAULT_NAMES, DefaultSource, SamplingDefaults
from app.contract.sampling_params import SamplingParams

if TYPE_CHECKING:
    from app.config.sampling_config import SamplingConfig

LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md, which users of GGUF files are used to."""
OPENAI = {"temperature": 1.0, "top_p": 1.0}
"""https://platform.openai.com/docs/api-reference/chat/create."""
_PARAM = "override_generation_config"
# How transformers calls the same.
_SPELT = {"max_new_tokens": "max_tokens"}


class SampledModel(NamedTuple):
    """A model whose defaults are chosen: `own` are the values that its files name, `names` what it is called."""

    architecture: str
    names: tuple[str, ...]
    own: Mapping[str, float]
    is_gguf: bool
    can_chat: bool


def sampling_defaults(settings: SamplingConfig, model: SampledModel) -> SamplingDefaults:
    """Return the defaults of requests to a model. Any thread.

    Settings replace single values. Of the others each source adds what is not said yet, up to the first that says a
    temperature: the filters that it does not name were off when its temperature was chosen. Files that repeat what
    their publisher recommends, which are values for thinking, say nothing of answers without.
    """
    row = recommendation(model.architecture, model.names) if model.can_chat else None
    defaults = _chosen(settings, model, row and row.values)
    if row is None or row.without_thinking is None:
        return defaults
    unsaid = model._replace(own={}) if model.own.items() <= row.values.items() else model
    other = _chosen(settings, unsaid, row.without_thinking)
    return defaults if other == defaults else replace(defaults, without_thinking=other)


def _chosen(settings: SamplingConfig, model: SampledModel, recommended: Mapping[str, float] | None) -> SamplingDefaults:
    values: dict[str, Any] = {}
    sources: dict[str, DefaultSource] = {}
    for source, said in _sources(settings, model, recommended):
        new = {name: value for name, value in said.items() if name not in values}
        values |= new
        sources |= dict.fromkeys(new, source)
        if "temperature" in said:
            break
    given = read_settings(settings)
    return SamplingDefaults(**(values | given), sources=sources | dict.fromkeys(given, DefaultSource.SETTING))


def _sources(
    settings: SamplingConfig, model: SampledModel, recommended: Mapping[str, float] | None
) -> Iterator[tuple[DefaultSource, Mapping[str, float]]]:
    if settings.generation_config == "auto":
        yield DefaultSource.FILE, model.own
        if recommended is not None:
            yield DefaultSource.PUBLISHER, recommended
        if model.is_gguf:
            yield DefaultSource.LLAMA_CPP, LLAMA_CPP
    yield DefaultSource.OPENAI, OPENAI


def read_settings(settings: SamplingConfig) -> dict[str, Any]:
    """Return the defaults that settings set.

    Raises:
        ConfigurationError: `override_generation_config` is no JSON object of sampling defaults within their bounds, or
            says something else than another setting.
    """
    override = _read_override(settings.override_generation_config)
    given = {name: getattr(settings, f"default_{name}") for name in DEFAULT_NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given.keys() & override.keys():
        if given[name] != override[name]:
            raise ConfigurationError(
                f"default_{name} is {given[name]:.7g}, and {_PARAM} says {override[name]:.7g}; leave one of them out.",
                param=f"default_{name}",
            )
    return override | given


def _read_override(text: str | None) -> dict[str, Any]:
    try:
        given = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict):
        given = {_SPELT.get(name, name): value for name, value in given.items()}
    if not isinstance(given, dict) or not set(given) <= set(DEFAULT_NAMES):
        raise ConfigurationError(
            f"{_PARAM} is {text!r:.100}; it must be a JSON object with some of the keys {', '.join(DEFAULT_NAMES)}, "
            'such as {"temperature": 0.7}.',
            param=_PARAM,
        )
    try:
        SamplingParams(**given)
    except InvalidValue as error:
        raise ConfigurationError(f"{_PARAM}: {error.message}", param=_PARAM) from None
    return {name: value for name, value in given.items() if value is not None}
