"""These tests need Triton's interpreter and so run without a GPU; tests/gpu has the tests for a GPU."""

from pathlib import Path

import pytest

from app.kernels.triton.interpreter import is_interpreting

HERE = Path(__file__).parent

if is_interpreting():
    from tests.kernels.triton import quick_interpreter

    quick_interpreter.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests on a machine with a GPU."""
    for item in items:
        if HERE in item.path.parents and not is_interpreting():
            item.add_marker(pytest.mark.skip(reason="Triton compiles for the GPU here"))
