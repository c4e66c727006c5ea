"""Memory in separate pages is zero, aligned, and returned to the system when it is unused."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app.kernels import pages
from app.kernels.pages import HugePages, own_pages
from tests.cases import long
from tests.own_process import in_own_process

MIB = 1 << 20


def resident() -> int:
    """The resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("shape", [(3, 5), (0,), (1,), (7, 0, 2), (1000, 1001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_own_pages_are_zeros_of_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype):
    tensor = own_pages(*shape, dtype=dtype)
    assert tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
    assert not tensor.any()


def growth_with_own_pages() -> tuple[int, int]:
    """The resident bytes of 20 MiB in use, and of what is left of them."""
    gc.collect()
    before = resident()
    tensor = own_pages(20 * MIB, dtype=torch.uint8).fill_(1)
    view = tensor[5:9]
    used = resident() - before
    del tensor
    assert view.tolist() == [1, 1, 1, 1]
    del view
    gc.collect()
    return used, resident() - before


def growth_with_huge_pages() -> tuple[int, int]:
    """As `growth_with_own_pages`."""
    gc.collect()
    before = resident()
    memory = HugePages().allocate(20 * MIB).fill_(1)
    used = resident() - before
    del memory
    gc.collect()
    return used, resident() - before


@pytest.mark.parametrize("growth", [long(growth_with_own_pages), growth_with_huge_pages])
def test_pages_are_freed_with_their_last_tensor(growth: Callable[[], tuple[int, int]]):
    used, left = in_own_process(growth)
    assert used > 19 * MIB
    assert left < 5 * MIB


def test_huge_pages_allocate_aligned_memory_that_does_not_overlap():
    pages = HugePages()
    tensors = [pages.allocate(size).fill_(number) for number, size in enumerate((1, 63, 64, 65, 0, 5 * MIB, 7))]
    assert [len(memory) for memory in tensors] == [1, 63, 64, 65, 0, 5 * MIB, 7]
    assert all(memory.data_ptr() % 64 == 0 for memory in tensors if len(memory))
    assert all((memory == number).all() for number, memory in enumerate(tensors))


def growth_with_unused_pages() -> int:
    """The resident bytes of almost 3 GiB that nothing was written to."""
    pages, before = HugePages(), resident()
    large = [pages.allocate(700 * MIB) for _ in range(4)]
    grown = resident() - before
    large[3][-1] = 1
    assert not large[2][-1] and large[0].data_ptr() != large[1].data_ptr()
    return grown


def test_huge_pages_are_not_resident_before_use_and_grow():
    assert in_own_process(growth_with_unused_pages) < 5 * MIB


def test_without_huge_pages_normal_ones_are_used(monkeypatch: pytest.MonkeyPatch):
    class NoHugePages(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(pages, "_map", lambda num_bytes: NoHugePages(-1, num_bytes))
    assert not HugePages().allocate(100).any()


@pytest.mark.parametrize("num_bytes", [2**60, 2**70])
def test_too_much_memory_is_a_memory_error(num_bytes: int):
    with pytest.raises(MemoryError, match=f"{num_bytes:,} bytes"):
        own_pages(num_bytes, dtype=torch.uint8)
    with pytest.raises(MemoryError):
        HugePages().allocate(num_bytes)


def test_pages_are_populated_a_huge_page_at_a_time(monkeypatch: pytest.MonkeyPatch):
    taken: list[tuple[int, int]] = []

    def madvise(begin: ctypes.c_void_p, length: ctypes.c_size_t, advice: ctypes.c_int) -> int:
        taken.append((begin.value or 0, length.value))
        return 0

    memory = torch.empty(7 * MIB, dtype=torch.uint8)[4097:]
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(pages.ctypes, "CDLL", lambda name: SimpleNamespace(madvise=madvise))
    assert pages.populate(memory)
    ends = [begin + length for begin, length in taken]
    assert taken[0][0] <= memory.data_ptr() and ends[-1] == memory.data_ptr() + memory.nbytes
    assert [begin for begin, _ in taken[1:]] == ends[:-1] and all(end % pages.HUGE_PAGE == 0 for end in ends[:-1])
    assert max(length for _, length in taken) <= pages.HUGE_PAGE
