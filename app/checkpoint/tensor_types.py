"""The types of tensors in files: sizes of their blocks, and whether this version can decode them."""

from __future__ import annotations

from typing import NamedTuple

ADVICE = "take the same model as Q4_K_M, Q5_K_M, Q6_K or Q8_0"
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""The types that a model computes in, as settings call them, and as files of both formats do."""


class TensorType(NamedTuple):
    """A row is a number of blocks; a block holds `block_size` weights in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether weights are stored as integers with scales."""
        return self.block_size > 1

    @property
    def is_supported(self) -> bool:
        """Whether this version can decode the type."""
        return self.name in SUPPORTED

    @property
    def is_grouped(self) -> bool:
        """Whether the CPU's kernels multiply the integers of its blocks as they are."""
        return self.is_quantized and self.is_supported

    def num_bytes(self, num_weights: int) -> int:
        """Return the bytes of `num_weights` weights, a multiple of `block_size`."""
        return num_weights // self.block_size * self.block_bytes

    def kept_bytes(self, num_weights: int) -> int:
        """Return the bytes of `num_weights` weights in the memory of the CPU's kernels, if the type `is_grouped`."""
        return num_weights // self.block_size * (self.block_bytes + _SPREAD_BYTES.get(self.name, 0))


# Kernels keep each of the 16 factors of 6 bits as a byte; the file packs them into 12.
_SPREAD_BYTES = {"Q4_K": 4, "Q5_K": 4}

SUPPORTED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}
"""Of GGUF files, by their number there; missing numbers are types that llama.cpp has removed."""
