"""A record is fused with the next one only if it alone writes the operand of that one."""

from __future__ import annotations

import ctypes

import pytest

from app.kernels.cpu import records
from app.kernels.cpu.fusion import fuse
from app.kernels.cpu.records import Activation, Epilogue, Matrix, Packed, Quantized, Type

PRODUCT, RESIDUAL, ACTIVATED, HIDDEN, BYTES = (64 * number for number in range(1, 6))


def matrix(address: int) -> Matrix:
    return Matrix(address, 32, Type.FLOAT32)


def product(**fields: object) -> records.Linear:
    """A product whose result goes to PRODUCT."""
    interleaved = Packed(is_interleaved=1)
    given = {"weight": interleaved, "x": matrix(HIDDEN), "out": matrix(PRODUCT), "epilogue": Epilogue.STORE, **fields}
    return records.Linear(**given)


ADD = records.Add(matrix(PRODUCT), matrix(RESIDUAL), 32)
SILU, GELU = (records.Gate(matrix(PRODUCT), matrix(ACTIVATED), 16, activation) for activation in Activation)
NORM = records.Norm(x=matrix(RESIDUAL), out=matrix(HIDDEN), width=32)
NORM_IN_PLACE = records.Norm(x=matrix(PRODUCT), out=matrix(PRODUCT), width=32)
QUANTIZED = Quantized(data=BYTES, stride=128, num_groups=1)
QUANTIZE = records.Quantize(matrix(HIDDEN), QUANTIZED, 32)


def test_a_product_is_fused_with_the_addition_to_the_residual():
    last = product()
    assert fuse(last, ADD)
    assert last.epilogue == Epilogue.ACCUMULATE and last.out.data == RESIDUAL and last.x.data == HIDDEN


@pytest.mark.parametrize("gate", [SILU, GELU], ids=["silu", "gelu"])
def test_a_product_with_interleaved_weights_is_fused_with_the_activation(gate: records.Gate):
    last = product()
    assert fuse(last, gate)
    assert last.epilogue == Epilogue.GATED and last.activation == gate.activation and last.out.data == ACTIVATED


def test_a_norm_is_fused_with_quantization():
    last = records.Norm.from_buffer_copy(NORM)
    assert fuse(last, QUANTIZE)
    assert last.quantized.data == BYTES and last.out.data == HIDDEN


@pytest.mark.parametrize(
    ("last", "new"),
    [
        (product(), records.Add(matrix(HIDDEN), matrix(RESIDUAL), 32)),
        (product(), records.Gate(matrix(HIDDEN), matrix(ACTIVATED), 16)),
        (product(weight=Packed()), SILU),
        (product(epilogue=Epilogue.ACCUMULATE), ADD),
        (product(epilogue=Epilogue.GATED), SILU),
        (product(), QUANTIZE),
        (product(), NORM),
        (product(), NORM_IN_PLACE),
        (NORM_IN_PLACE, ADD),
        (NORM, records.Quantize(matrix(ACTIVATED), QUANTIZED, 32)),
        (records.Norm(x=matrix(RESIDUAL), out=matrix(HIDDEN), quantized=QUANTIZED, width=32), QUANTIZE),
        (NORM, ADD),
        (ADD, NORM),
        (SILU, QUANTIZE),
    ],
)
def test_a_record_with_an_operand_of_another_record_is_not_fused(last: records.Fields, new: records.Fields):
    before = bytes(ctypes.string_at(ctypes.addressof(last), ctypes.sizeof(last)))
    assert not fuse(last, new)
    assert bytes(ctypes.string_at(ctypes.addressof(last), ctypes.sizeof(last))) == before, "the record must not change"
