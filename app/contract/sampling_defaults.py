"""What parameters of sampling are for requests that do not name them, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MODELS_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The parameters of `SamplingParams` whose defaults a model's files may say."""
DEFAULT_NAMES = (*MODELS_NAMES, "max_tokens")
"""Those that may have a default."""


class DefaultSource(StrEnum):
    """Who says a default, in the order in which they are asked; the values are words for people."""

    SETTING = "a setting"
    FILE = "from the model's files"
    PUBLISHER = "recommended by its publisher"
    LLAMA_CPP = "llama.cpp's default"
    OPENAI = "OpenAI's default"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """A model's values for parameters that are `None`; what nobody says is neutral, and `max_tokens` what fits.

    `sources` has who says each of the others. `without_thinking` are the values of answers before which the model is
    told not to think; None: the same.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    sources: Mapping[str, DefaultSource] = field(default_factory=dict, compare=False)
    without_thinking: SamplingDefaults | None = None

    def values(self) -> dict[str, float]:
        """Return the values by their names, without a `max_tokens` that nobody says."""
        found = {name: getattr(self, name) for name in DEFAULT_NAMES}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        """Return those that somebody says, for people: `temperature 0.2, top-p 0.9 (recommended by its publisher)`."""
        own = self._own_words()
        return own if self.without_thinking is None else f"{own}; without thinking: {self.without_thinking}"

    def _own_words(self) -> str:
        said: dict[DefaultSource, list[str]] = {}
        for name, value in self.values().items():
            if name in self.sources:
                said.setdefault(self.sources[name], []).append(f"{_spelt(name)} {value:.7g}")
        return "; ".join(f"{', '.join(said[source])} ({source})" for source in DefaultSource if source in said)


def _spelt(name: str) -> str:
    return name.replace("_", "-" if name in ("top_p", "top_k", "min_p") else " ")
