"""Reads typed fields of a model's configuration; every error names the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.checkpoint.checkpoint_folder import rejected
from app.contract.errors import ModelRefused

_SMALLEST, _LARGEST = 1e-18, 1e18  # squares and reciprocals stay in the range of float32


class Fields:
    """The fields of one object; `where` is the file, as errors name it."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def integer(self, name: str, default: int | None = None, low: int = 1, high: int = 2**31) -> int:
        """Return an integer between `low` and `high`.

        Raises:
            ModelRefused: it is missing without a default, or is something else.
        """
        value = default if self.config.get(name) is None else self.config[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.rejection(name, f"is {value!r:.80}; it must be an integer between {low} and {high}")
        return value

    def number(
        self, name: str, default: float | None = None, *, above: float = _SMALLEST, high: float = _LARGEST
    ) -> float:
        """Return a number above `above` and at most `high`; raises as `integer` does.

        By default it may be squared and divided by.
        """
        value = default if self.config.get(name) is None else self.config[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value <= high:
            raise self.rejection(name, f"is {value!r:.80}; it must be a number above {above:g} and at most {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false; raises as `integer` does."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise self.rejection(name, f"is {value!r:.80}; it must be true or false")
        return value

    def rejection(self, name: str, what: str) -> ModelRefused:
        """Return the error for a field: `what` says its value and what is allowed."""
        return rejected(f"{self.where}: {name} {what}.")
