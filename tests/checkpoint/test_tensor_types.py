"""The table of tensor types is that of the `gguf` package."""

import gguf

from app.checkpoint.tensor_types import SUPPORTED, TENSOR_TYPES


def test_sizes_of_all_types_are_those_of_the_gguf_package():
    known = {int(number): (number.name, *gguf.GGML_QUANT_SIZES[number]) for number in gguf.GGMLQuantizationType}
    assert {number: tuple(kind) for number, kind in TENSOR_TYPES.items()} == {
        number: known[number] for number in TENSOR_TYPES
    }
    assert {kind.name for kind in TENSOR_TYPES.values() if kind.is_supported} == set(SUPPORTED)
