"""Compiled kernels are held against the shared memory of the GPUs that they are for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from triton.runtime.errors import OutOfResources

from app.kernels.triton.specializations import SHARED_KIB, check_shared_memory
from tests.kernels.triton.compile_table import SHARED_LIMITS


def kernel(num_bytes: int) -> SimpleNamespace:
    """A compiled kernel with so much shared memory."""
    return SimpleNamespace(metadata=SimpleNamespace(shared=num_bytes))


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_a_kernel_that_is_too_large_for_a_gpu_is_found_when_it_is_compiled(capability):
    most = 1024 * SHARED_KIB[capability]
    check_shared_memory(kernel(most), capability)
    with pytest.raises(OutOfResources, match=f"Required: {most + 1}, Hardware limit: {most}"):
        check_shared_memory(kernel(most + 1), capability)


def test_of_an_unknown_gpu_nothing_is_said():
    check_shared_memory(kernel(1 << 28), (11, 0))


def test_the_limits_are_those_that_the_compiled_table_is_held_against():
    assert {
        10 * major + minor: 1024 * kib for (major, minor), kib in SHARED_KIB.items()
    }.items() >= SHARED_LIMITS.items()
