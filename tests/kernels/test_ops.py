"""Padding, and the signatures that all implementations share."""

import inspect

import pytest

from app.kernels.cpu.native_ops import NativeOps
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Ops, pad_rows
from tests.kernels.reference import ReferenceOps


def test_row_counts_are_padded_to_multiples_of_eight():
    assert [pad_rows(count) for count in (0, 1, 7, 8, 9, 16, 17)] == [0, 8, 8, 8, 16, 16, 24]


@pytest.mark.parametrize("implementation", [TorchOps, ReferenceOps, NativeOps])
def test_every_operation_has_the_signature_of_the_protocol(implementation: type):
    for name, method in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(implementation, name)) == inspect.signature(method), name
            if name != "begin_step":
                assert inspect.signature(method).parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY
