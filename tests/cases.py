"""Cases of one rule, of which `make test` runs some and `make test-long` the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest

# `make test-long` sets this, and so has every property once more, with all its examples (see `tests.conftest`).
HAS_ALL_EXAMPLES = os.environ.get("QUIRE_EXAMPLES") == "all"


def examples(count: int) -> int:
    """Return how many of `count` examples of a property are drawn: `make test` draws a quarter, others each time."""
    return count if HAS_ALL_EXAMPLES else max(min(count, 4), count // 4)


def long(*values: Any) -> Any:
    """Return a case that only `make test-long` runs."""
    return pytest.param(*values, marks=pytest.mark.long)


def grid(is_usual: Callable[..., bool], *axes: Iterable[Any]) -> list[Any]:
    """Return every combination of a value of each axis; `make test-long` runs those that are not usual."""
    return [pytest.param(*values) if is_usual(*values) else long(*values) for values in product(*axes)]
