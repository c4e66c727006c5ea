"""Blocks are decoded to the same bits as by the `gguf` package."""

import gguf
import numpy as np
import pytest
import torch

from app.checkpoint.tensor_types import SUPPORTED
from app.models.gguf.gguf_blocks import decode
from tests.gguf_blocks import SCALES


def random_rows(kind: str, num_rows: int, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes are valid blocks; scales are finite, of all sizes and signs."""
    generator = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if block == 1:
        values = generator.standard_normal((num_rows, num_blocks)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    raw = generator.integers(0, 256, (num_rows * num_blocks, size), dtype=np.uint8)
    for begin in SCALES[kind]:
        values = generator.standard_normal(len(raw)) * 10.0 ** generator.integers(-7, 3, len(raw))
        raw[:, begin : begin + 2] = values.astype("<f2")[:, None].view(np.uint8)
    return raw.reshape(num_rows, -1)


@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize(("num_rows", "num_blocks"), [(1, 1), (3, 7), (33, 12)])
def test_blocks_are_decoded_to_the_same_bits(kind: str, num_rows: int, num_blocks: int):
    raw = random_rows(kind, num_rows, num_blocks)
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = decode(kind, torch.from_numpy(raw)).float().numpy()
    assert found.shape == wanted.shape
    assert (found.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.parametrize("kind", SUPPORTED)
def test_rows_that_are_not_adjacent_in_memory_are_decoded(kind: str):
    raw = torch.from_numpy(random_rows(kind, 6, 4))
    assert torch.equal(decode(kind, raw[::2].contiguous()), decode(kind, raw)[::2])
