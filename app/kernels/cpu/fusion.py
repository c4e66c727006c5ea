"""Which record can do the work of the one after it, so that a row of values is not written and read again.

What a fused record no longer writes, the product's own output, must not be read by anybody else; models use each result
once.
"""

from __future__ import annotations

from app.kernels.cpu import records
from app.kernels.cpu.records import Epilogue


def fuse(last: records.Fields, new: records.Fields) -> bool:
    """Let `last` do what `new` was to do; False if it cannot.

    - a product, and the addition of its result: it adds to where the sum goes
    - a product with interleaved weights, and the gated activation of its result: it stores that instead
    - a norm, and the quantization of its result: it writes bytes too
    """
    match last, new:
        case records.Linear(), records.Add() if _reads(new.x, last):
            last.epilogue, last.out = Epilogue.ACCUMULATE, new.out
            return True
        case records.Linear(), records.Gate() if _reads(new.x, last) and last.weight.is_interleaved:
            last.epilogue, last.activation, last.out = Epilogue.GATED, new.activation, new.out
            return True
        case records.Norm(), records.Quantize() if last.out.data == new.x.data and not last.quantized.num_groups:
            last.quantized = new.out
            return True
    return False


def _reads(x: records.Matrix, product: records.Linear) -> bool:
    return bool(product.epilogue == Epilogue.STORE and x.data == product.out.data)
