"""These tests need Triton's interpreter and so run without a GPU; tests/gpu has the tests for a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.kernels.triton.interpreter import is_interpreting
from app.kernels.triton.sampling import logprobs, penalties, sample

HERE = Path(__file__).parent
LANES = 512  # of a block: more than the tests' vocabularies have, so that it holds a whole row, as one of 4,096 does

if is_interpreting():
    from tests.kernels.triton import quick_interpreter

    quick_interpreter.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests on a machine with a GPU."""
    for item in items:
        if HERE in item.path.parents and not is_interpreting():
            item.add_marker(pytest.mark.skip(reason="Triton compiles for the GPU here"))


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """Sample from smaller blocks: the interpreter computes all lanes, also those behind the vocabulary."""
    sizes = {"BLOCK": (sample, penalties, logprobs), "KEPT": (sample,), "ROW_BLOCK": (sample,)}
    with pytest.MonkeyPatch.context() as patch:
        for name, modules in sizes.items():
            for module in modules:
                patch.setattr(module, name, LANES)
        yield
