"""Cases of one rule, of which `make test` runs some and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def long(*values: Any) -> Any:
    """Return a case that only `make test-long` runs."""
    return pytest.param(*values, marks=pytest.mark.long)


def grid(is_usual: Callable[..., bool], *axes: Iterable[Any]) -> list[Any]:
    """Return every combination of a value of each axis; `make test-long` runs those that are not usual."""
    return [pytest.param(*values) if is_usual(*values) else long(*values) for values in product(*axes)]
