"""The kernels under test."""

from __future__ import annotations

import pytest

from app.kernels.cpu.library import NativeLibrary
from tests.kernels.cpu.sets import load_set, sets_of_this_machine


@pytest.fixture(params=sets_of_this_machine(), scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The kernels for each instruction set of this machine."""
    found = load_set(request.param)
    if found is None:
        pytest.skip("no compiler found, or this machine lacks the instructions")
    return found
