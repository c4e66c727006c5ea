"""The kernels under test."""

from __future__ import annotations

import pytest

from app.kernels.cpu.compiling import INSTRUCTION_SETS
from app.kernels.cpu.library import NativeLibrary, load_library


@pytest.fixture(params=INSTRUCTION_SETS, scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The kernels for each instruction set of this machine."""
    found = load_library(request.param)
    if found is None:
        pytest.skip(f"no kernels for {request.param} on this machine")
    return found
