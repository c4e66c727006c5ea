"""The settings of sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.config.setting import setting
from app.contract.sampling_params import BOUNDS, MAX_LENGTH


def _default(name: str, what: str) -> Any:
    """Declare the setting of the default of one sampling parameter, with the bounds that requests have."""
    bounds = BOUNDS[name]
    low, high = (int(end) if end == int(end) else end for end in (bounds.low, bounds.high))
    return setting(
        None,
        f"`{name}` of requests that name none{what}",
        kind="integer" if bounds.is_integer else "number",
        minimum=low,
        maximum=None if high == MAX_LENGTH else high,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Sampling defaults."""

    default_temperature: float | None = _default(
        "temperature",
        "; 0 is greedy. What neither this nor the following settings say is what the model's files say, else what its "
        "publisher recommends, else for GGUF files llama.cpp's default.",
    )
    default_top_p: float | None = _default("top_p", "; 1 allows all tokens.")
    default_top_k: int | None = _default("top_k", "; 0 allows all tokens.")
    default_min_p: float | None = _default("min_p", "; 0 allows all tokens.")
    default_repetition_penalty: float | None = _default("repetition_penalty", "; 1 is no penalty.")
    default_max_tokens: int | None = _default(
        "max_tokens",
        "; without it an answer may be as long as fits, and a completion over HTTP 16 tokens. In Python, "
        "`SamplingParams` that say nothing name 16.",
    )
    generation_config: str = setting(
        "auto",
        "Who else says sampling defaults: `auto` is the model's files, its publisher, llama.cpp; `vllm` is nobody: "
        "temperature 1 without a filter.",
        choices=("auto", "vllm"),
    )
    override_generation_config: str | None = setting(
        None,
        'The same as the settings of defaults, as a JSON object: `{"temperature": 0.7, "top_p": 0.9}`. A value that '
        "one of them sets otherwise is an error.",
    )
