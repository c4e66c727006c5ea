"""An option of vLLM, and what a value of it means here.

The options themselves are the rows of `app.config.vllm_options`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.errors import ConfigurationError

MAX_SHOWN_CHARS = 60


class Reading(NamedTuple):
    """The meaning of a value: that of the row's setting (None: nothing is set), and a line for the user, if any."""

    value: object = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOption:
    """One option of `vllm serve`, which is a keyword of vLLM's `LLM`, too.

    A row without a setting has no effect, or is refused, but for the values in `same`. None is a setting's default.

    Attributes:
        name: the keyword; the option has hyphens.
        kind: `flag` has no value on the command line, `value` one, `values` at least one.
        short: another spelling on the command line.
        same: values that ask for what Quire does anyway.
        setting: the setting that it sets; other values than those of `equal`, `near` and `read` are passed to it.
        equal: values of the same meaning by another name; `near`: the closest there are, which `note` explains.
        read: turns a value into the setting's; it may raise `ValueError`. What it changes has the line `note`.
        note: what is different about values in `near` and what `read` changes; in a row without both, about any value.
        refusal: why other values are refused, and what to do instead.
        is_secret: whether lines must not show the value.
    """

    name: str
    kind: str = "value"
    short: str = ""
    same: tuple[str, ...] = ()
    setting: str = ""
    equal: Mapping[str, object] = field(default_factory=dict)
    near: Mapping[str, object] = field(default_factory=dict)
    read: Callable[[object], object] | None = None
    note: str = ""
    refusal: str = ""
    is_secret: bool = False

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")

    def reading(self, value: object) -> Reading:
        """Return the meaning of `value`.

        Raises:
            ConfigurationError: it is refused.
        """
        word = _word(value)
        if word in self.same or (value is None and self.setting):
            return Reading()
        if word in self.equal:
            return Reading(self.equal[word])
        if word in self.near:
            return Reading(self.near[word], self._line(word, self.note))
        if self.read is not None:
            return self._read(value, word)
        if self.refusal:
            raise ConfigurationError(self._line(word, self.refusal), param=self.name)
        note = "" if self.near or not self.note else self._line(word, self.note)
        return Reading(value if self.setting else None, note)

    def _read(self, value: object, word: str) -> Reading:
        assert self.read is not None
        try:
            meant = self.read(value)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigurationError(self._line(word, self.refusal), param=self.name) from None
        return Reading(meant, self._line(word, self.note) if meant != value and self.note else "")

    def _line(self, word: str, text: str) -> str:
        shown = word if len(word) <= MAX_SHOWN_CHARS else f"{word[:MAX_SHOWN_CHARS]}..."
        shown = "given" if self.is_secret else shown
        return f"{self.name} is {shown}: {text}."


def _word(value: object) -> str:
    """Return a value as one writes it on the command line; 1.0 is the same as 1."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, default=str)
    return str(value).strip().removesuffix(".0")
