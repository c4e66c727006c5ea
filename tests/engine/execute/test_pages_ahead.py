"""Memory of KV blocks is there before steps come to them, and of no more than the next ones."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.engine.execute.pages_ahead import MIN_AHEAD, PagesAhead
from app.kernels.pages import huge_pages, populate

LAYERS, BYTES = 3, 64 << 10  # of a block in one layer's keys: more than 32 to a huge page
NUM_BLOCKS = 1000


class Taken:
    """Notes which blocks were taken, in which order."""

    def __init__(self, blocks: Tensor, is_able: bool = True) -> None:
        self.blocks = blocks
        self.is_able = is_able
        self.stretches: list[tuple[int, int, int]] = []  # region, first block, number

    def __call__(self, memory: Tensor) -> bool:
        region, first = divmod((memory.data_ptr() - self.blocks.data_ptr()) // BYTES, self.blocks.shape[2])
        self.stretches.append((region, first, len(memory)))
        return self.is_able


def reached(taken: Taken, *block_ids: int) -> PagesAhead:
    ahead = PagesAhead(taken.blocks, taken)
    wait(ahead)
    for block_id in block_ids:
        ahead.prefault(block_id)
        wait(ahead)
    return ahead


def wait(ahead: PagesAhead) -> None:
    """Wait until the thread of `ahead` is done."""
    if ahead._thread is not None:
        ahead._thread.join()


@pytest.fixture
def blocks() -> Tensor:
    return torch.empty(LAYERS, 2, NUM_BLOCKS, BYTES, dtype=torch.uint8, device="cpu")


def test_the_first_blocks_are_taken_at_once_in_all_regions(blocks: Tensor):
    taken = Taken(blocks)
    reached(taken)
    assert taken.stretches == [(region, 0, 1 + MIN_AHEAD) for region in range(2 * LAYERS)]


def test_more_are_taken_before_the_last_one_is_used(blocks: Tensor):
    taken = Taken(blocks)
    reached(taken, *range(1, MIN_AHEAD // 2 + 1))
    assert len(taken.stretches) == 2 * LAYERS
    reached(taken, *range(1, MIN_AHEAD // 2 + 2))
    first = {(begin, number) for _, begin, number in taken.stretches[3 * LAYERS :]}
    assert (1 + MIN_AHEAD, MIN_AHEAD) in first


def test_each_block_is_taken_once_and_none_that_is_not_there(blocks: Tensor):
    taken = Taken(blocks)
    reached(taken, *range(NUM_BLOCKS), 5, NUM_BLOCKS - 1)
    for region in range(2 * LAYERS):
        mine = [(first, number) for each, first, number in taken.stretches if each == region]
        found = [block for first, number in mine for block in range(first, first + number)]
        assert found == list(range(NUM_BLOCKS))


def test_a_system_that_cannot_is_asked_once(blocks: Tensor):
    taken = Taken(blocks, is_able=False)
    reached(taken, *range(NUM_BLOCKS))
    assert len(taken.stretches) == 1


def test_without_a_thread_steps_do_it_themselves(blocks: Tensor, monkeypatch: pytest.MonkeyPatch):
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    taken = Taken(blocks)
    monkeypatch.setattr(threading.Thread, "start", start)
    reached(taken, *range(NUM_BLOCKS))
    assert not taken.stretches


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_populated_memory_is_resident_and_keeps_what_is_in_it():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    memory = huge_pages(32 << 20, dtype=torch.uint8)
    memory[7] = 5
    before = resident()
    if not populate(memory[: 16 << 20]):
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert 10 << 20 <= resident() - before <= 20 << 20
    assert memory[7] == 5
