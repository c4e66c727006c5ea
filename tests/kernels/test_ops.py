"""Padding, and which implementation a device gets."""

import inspect

import pytest
import torch

from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Ops, pad_rows, select_ops
from app.kernels.reference import ReferenceOps


def test_row_counts_are_padded_to_multiples_of_eight():
    assert [pad_rows(count) for count in (0, 1, 7, 8, 9, 16, 17)] == [0, 8, 8, 8, 16, 16, 24]


def test_the_cpu_has_kernels_and_other_devices_are_refused_by_name():
    assert isinstance(select_ops(torch.device("cpu")), TorchOps)
    with pytest.raises(NotImplementedError, match="meta"):
        select_ops(torch.device("meta"))


@pytest.mark.parametrize("implementation", [TorchOps, ReferenceOps])
def test_every_operation_has_the_signature_of_the_protocol(implementation: type):
    for name, method in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(implementation, name)) == inspect.signature(method), name
            if name != "begin_step":
                assert inspect.signature(method).parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY
