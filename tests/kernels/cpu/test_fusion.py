"""A record takes over the next one's work only where it alone made what that one reads."""

from __future__ import annotations

import ctypes

import pytest

from app.kernels.cpu import records
from app.kernels.cpu.fusion import fuse
from app.kernels.cpu.records import Epilogue, Matrix, Packed, Quantized, Type

PRODUCT, RESIDUAL, ACTIVATED, HIDDEN, BYTES = (64 * number for number in range(1, 6))


def matrix(address: int) -> Matrix:
    return Matrix(address, 32, Type.FLOAT32)


def product(**fields: object) -> records.Linear:
    """A product whose result goes to PRODUCT."""
    interleaved = Packed(is_interleaved=1)
    given = {"weight": interleaved, "x": matrix(HIDDEN), "out": matrix(PRODUCT), "epilogue": Epilogue.STORE, **fields}
    return records.Linear(**given)


ADD = records.Add(matrix(PRODUCT), matrix(RESIDUAL), 32)
SILU = records.SiluMul(matrix(PRODUCT), matrix(ACTIVATED), 16)
NORM = records.Norm(x=matrix(RESIDUAL), out=matrix(HIDDEN), width=32)
QUANTIZE = records.Quantize(matrix(HIDDEN), Quantized(BYTES, 128, BYTES), 32)


def test_a_product_adds_its_sums_to_the_residual():
    last = product()
    assert fuse(last, ADD)
    assert last.epilogue == Epilogue.ACCUMULATE and last.out.data == RESIDUAL and last.x.data == HIDDEN


def test_a_product_with_interleaved_weights_stores_the_activation():
    last = product()
    assert fuse(last, SILU)
    assert last.epilogue == Epilogue.GATED and last.out.data == ACTIVATED


def test_a_norm_also_writes_bytes():
    last = records.Norm.from_buffer_copy(NORM)
    assert fuse(last, QUANTIZE)
    assert last.quantized.data == BYTES and last.out.data == HIDDEN


@pytest.mark.parametrize(
    ("last", "new"),
    [
        (product(), records.Add(matrix(HIDDEN), matrix(RESIDUAL), 32)),
        (product(), records.SiluMul(matrix(HIDDEN), matrix(ACTIVATED), 16)),
        (product(weight=Packed()), SILU),
        (product(epilogue=Epilogue.ACCUMULATE), ADD),
        (product(epilogue=Epilogue.GATED), SILU),
        (product(), QUANTIZE),
        (product(), NORM),
        (NORM, records.Quantize(matrix(ACTIVATED), Quantized(BYTES, 128, BYTES), 32)),
        (NORM, ADD),
        (ADD, NORM),
        (SILU, QUANTIZE),
    ],
)
def test_what_was_not_made_by_the_last_record_alone_stays_a_record(last: records.Fields, new: records.Fields):
    before = bytes(ctypes.string_at(ctypes.addressof(last), ctypes.sizeof(last)))
    assert not fuse(last, new)
    assert bytes(ctypes.string_at(ctypes.addressof(last), ctypes.sizeof(last))) == before, "nothing was changed"
