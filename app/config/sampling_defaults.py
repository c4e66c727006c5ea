"""The sampling defaults of a model, as its files and the settings `generation_config` and its override say."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from app.contract.errors import ConfigurationError, InvalidValue
from app.contract.sampling_params import SamplingDefaults, SamplingParams

if TYPE_CHECKING:
    from app.config.settings import ModelConfig

_NAMES = tuple(field.name for field in dataclasses.fields(SamplingDefaults))
_PARAM = "override_generation_config"


def sampling_defaults(settings: ModelConfig, own: SamplingDefaults) -> SamplingDefaults:
    """Return the defaults of requests, for a model whose files say `own`. Any thread."""
    base = own if settings.generation_config == "auto" else SamplingDefaults()
    return dataclasses.replace(base, **read_override(settings.override_generation_config))


def read_override(text: str | None) -> dict[str, Any]:
    """Return the defaults that `override_generation_config` sets.

    Raises:
        ConfigurationError: it is not a JSON object of sampling defaults within their bounds.
    """
    try:
        given = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not set(given) <= set(_NAMES):
        raise ConfigurationError(
            f"{_PARAM} is {text!r:.100}; it must be a JSON object with some of the keys {', '.join(_NAMES)}, such as "
            '{"temperature": 0.7}.',
            param=_PARAM,
        )
    try:
        SamplingParams(**given)
    except InvalidValue as error:
        raise ConfigurationError(f"{_PARAM}: {error.message}", param=_PARAM) from None
    return {name: value for name, value in given.items() if value is not None}
