"""Random blocks of every type of GGUF tensors. Any bytes are valid blocks; their scales must be numbers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from app.checkpoint.tensor_types import TENSOR_TYPES, TensorType

# Where the float16 numbers of a block begin.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}
SCALES |= {"Q6_K": [208]}
GROUPED = [kind for kind in TENSOR_TYPES.values() if kind.is_grouped]


def random_blocks(kind: TensorType, *shape: int, seed: int = 0, size: float = 0.05) -> Tensor:
    """Return uint8 rows [n, bytes], or [experts, n, bytes], of weights of about that size, positive and negative."""
    count = math.prod(shape)
    generator = np.random.default_rng(seed + count)
    raw = generator.integers(0, 256, (count // kind.block_size, kind.block_bytes), dtype=np.uint8)
    largest = {"Q4_K": 1000, "Q5_K": 2000, "Q6_K": 4000}.get(kind.name, 100)
    for begin in SCALES[kind.name]:
        values = generator.standard_normal(len(raw)) * size / largest * (5 if begin == 2 and largest == 100 else 1)
        raw[:, begin : begin + 2] = values.astype("<f2")[:, None].view(np.uint8)
    return torch.from_numpy(raw.reshape(*shape[:-1], -1))
