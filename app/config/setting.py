"""A setting: its name on the command line, in the environment and in a file, and the check of its value.

The settings themselves are the fields of `app.config.settings`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.contract.errors import ConfigurationError

VARIABLE_PREFIX = "QUIRE_"
KIB, MIB, GIB = 2**10, 2**20, 2**30
MAX_SHOWN_CHARS = 200
MAX_INTEGER = 2**63 - 1  # of settings without a maximum of their own: the largest integer of torch and of file systems
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?b?)?b?", re.IGNORECASE)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def setting(
    default: object,
    help: str,
    *,
    kind: str = "",
    choices: Sequence[object] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    negated: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare one setting; `help` is its text on the command line and in the docs, with the unit.

    `kind` is by default that of the field's type in `KIND_OF_TYPE`. A flag that is on by default has an option
    `--no-...`; `negated` is the help text of that option. Errors do not show the value of a secret.
    """
    about = {"help": help, "kind": kind, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata={**about, "negated": negated, "is_secret": is_secret})


class Setting(NamedTuple):
    """One setting as the command line and the docs see it."""

    section: str
    name: str
    default: object
    help: str
    kind: str  # a key of `_KINDS`
    choices: tuple[object, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    negated: str = ""
    is_secret: bool = False

    @property
    def option(self) -> str:
        """The command line option, `--max-model-len` style; `--no-...` for a flag that is on by default."""
        prefix = "--no-" if self.kind == "flag" and self.default else "--"
        return prefix + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, `QUIRE_MAX_MODEL_LEN` style."""
        return VARIABLE_PREFIX + self.name.upper()

    def parse(self, text: str, source: str | None = None) -> object:
        """Turn the text of an option or variable into a value (not yet checked).

        `source` is the name in error messages, by default the option.

        Raises:
            ConfigurationError: the text is not of the setting's kind.
        """
        try:
            return _KINDS[self.kind].parse(text)
        except (ValueError, OverflowError):
            raise self._rejection(text, source or self.option) from None

    def check(self, value: object, source: str | None = None) -> object:
        """Return `value`, normalized, if it is of the right type and range.

        `source` is the name in error messages, by default the setting.

        Raises:
            ConfigurationError: the type or range is wrong; the message says what was given and what is allowed.
        """
        source = source or self.name
        if value is None and self.default is None:
            return None
        if self.kind in ("bytes", "seconds") and isinstance(value, str):
            value = self.parse(value, source)
        if self.kind in ("seconds", "share", "number") and type(value) is int and abs(value) <= MAX_INTEGER:
            value = float(value)
        if self.kind == "list" and isinstance(value, list):
            value = tuple(value)
        if not self._is_allowed(value):
            raise self._rejection(value, source)
        return value

    def allowed(self) -> str:
        """Return a description of the allowed values."""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        words = _KINDS[self.kind].words
        if self.minimum is not None and self.maximum is not None:
            return f"{words} between {self.minimum} and {self.maximum}"
        return words if self.minimum is None else f"{words}, at least {self.minimum}"

    def _is_allowed(self, value: object) -> bool:
        if not isinstance(value, _KINDS[self.kind].type) or (isinstance(value, bool) and self.kind != "flag"):
            return False
        if self.choices and value not in self.choices:
            return False
        if isinstance(value, str):
            return _is_text(value) and not _is_empty(value)
        if isinstance(value, tuple):
            return all(isinstance(item, str) and _is_text(item) for item in value)
        if isinstance(value, (int, float)) and self.kind != "flag":
            low = -MAX_INTEGER if self.minimum is None else self.minimum
            return low <= value <= (MAX_INTEGER if self.maximum is None else self.maximum)  # False for NaN
        return True

    def _rejection(self, value: object, source: str) -> ConfigurationError:
        if _is_empty(value):
            return ConfigurationError(f"{source} is empty; {self._instead(source)}.", param=self.name)
        try:
            given = "given" if value and self.is_secret else repr(value)
        except ValueError:  # an integer with more digits than Python converts to text
            given = "too large"
        given = given if len(given) <= MAX_SHOWN_CHARS else f"{given[:MAX_SHOWN_CHARS]}..."
        return ConfigurationError(f"{source} is {given}; it must be {self.allowed()}.", param=self.name)

    def _instead(self, source: str) -> str:
        """Return the advice about an empty value, as a shell makes one of a variable that is not set."""
        if source == self.variable:
            return f"set it to {self.allowed()}, or unset it"
        if source == self.option:
            return f"give {self.allowed()}, or leave the option out"
        return f"it must be {self.allowed()}"


def _is_empty(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def _is_text(text: str) -> bool:
    """Return whether a text has no lone surrogates, as which Python reads bytes that are no UTF-8, and no NUL, which
    no path may have.
    """
    return not any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)


def _parse_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = (match[2] or " ")[0].lower()
    if unit == " " and "." in match[1]:  # such as 0.5, where GiB are meant
        raise ValueError(text)
    return int(float(match[1]) * {" ": 1, "k": KIB, "m": MIB, "g": GIB}[unit])


def _parse_seconds(text: str) -> float:
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text)


def _parse_flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _parse_list(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:  # for example --api-key "$UNSET": the server would silently listen without a key
        raise ValueError(text)
    return parts


class _Kind(NamedTuple):
    type: type
    parse: Callable[[str], object]
    words: str


KIND_OF_TYPE = {"str": "text", "int": "integer", "float": "seconds", "bool": "flag", "tuple[str, ...]": "list"}
"""The kind of a setting by the annotation of its field, for fields that are declared without a kind."""
_KINDS = {
    "text": _Kind(str, str, "a string in UTF-8 without NUL"),
    "integer": _Kind(int, int, "an integer"),
    "seconds": _Kind(float, _parse_seconds, "a number of seconds (or, for example, 50ms)"),
    "share": _Kind(float, float, "a number"),
    "number": _Kind(float, float, "a number"),
    "bytes": _Kind(int, _parse_bytes, "a number of bytes, or a size with the unit KiB, MiB or GiB (for example 4MiB)"),
    "flag": _Kind(bool, _parse_flag, "true or false"),
    "list": _Kind(tuple, _parse_list, "a list of strings in UTF-8 without NUL, separated by commas"),
}
