"""Copies of blocks on the GPU, or in the interpreter, compared with the reference."""

import pytest
import torch

from app.kernels.triton import blocks
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
SHAPES = [(2, 2, 9, 16, 2, 64), (3, 2, 7, 5, 1, 24), (1, 2, 7, 3, 1, 6), (1, 2, 6, 32, 5, 128)]


def cache(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A cache of random bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(dtype).to(DEVICE)


def host_cache(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A cache in which each block is contiguous, in memory that the device can access."""
    layers, sides, num_blocks, *shape_of_block = shape
    memory = cache((num_blocks, layers, sides, *shape_of_block), dtype).cpu()
    return (memory.pin_memory() if DEVICE == "cuda" else memory).permute(1, 2, 0, 3, 4, 5)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes on the CPU: random bits may be NaN."""
    return tensor.cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_copied_within_a_cache(shape, dtype):
    torch.manual_seed(0)
    out = cache(shape, dtype)
    expected = out.cpu().clone()
    copies = torch.tensor([[1, 4], [0, 2], [1, 5]])
    ReferenceOps().copy_blocks(copies, out=expected)
    blocks.copy_blocks(copies.to(DEVICE), out=out)
    assert torch.equal(bits(out), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", ["out", "in"])
def test_blocks_are_swapped_between_the_host_and_the_device(direction, shape, dtype):
    torch.manual_seed(1)
    device, host = cache(shape, dtype), host_cache((*shape[:2], 4, *shape[3:]), dtype)
    source, target = (device, host) if direction == "out" else (host, device)
    copies = torch.tensor([[3, 0], [0, 3], [2, 2]])
    expected, unchanged = target.cpu().clone(), bits(source)
    ReferenceOps().swap_blocks(source.cpu(), copies, out=expected)
    blocks.swap_blocks(source, copies.to(DEVICE), out=target)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(bits(target), bits(expected))
    assert torch.equal(bits(source), unchanged)


def test_no_copies_launch_no_kernel():
    out = cache((1, 2, 3, 4, 1, 8), torch.float32)
    before = out.clone()
    blocks.copy_blocks(torch.empty(0, 2, dtype=torch.int64, device=DEVICE), out=out)
    assert torch.equal(bits(out), bits(before))
