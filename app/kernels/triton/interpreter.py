"""Whether kernels are compiled for a GPU or run by Triton's interpreter, on tensors of the CPU."""

from __future__ import annotations

import os


def is_interpreting() -> bool:
    """Return whether TRITON_INTERPRET was set when the kernels were imported.

    The interpreter multiplies the bit patterns of bfloat16 tiles; kernels must convert them to float32 before a
    product or any arithmetic if this holds (their constant `UPCAST`).
    """
    return os.environ.get("TRITON_INTERPRET") == "1"
