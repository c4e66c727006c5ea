"""The KV cache: layout, export and import of blocks, host memory, and prefaulted pages."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.engine.execute.kv_cache import MIN_AHEAD, KVCache, KVLayout, PagesAhead
from app.engine.schedule.step_plan import BlockCopy
from app.kernels.pages import huge_pages, populate
from tests.own_process import in_own_process

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYERS, BYTES = 3, 64 << 10  # bytes of a block in the keys of one layer: more than 32 blocks per huge page
NUM_BLOCKS = 1000


def filled(layout: KVLayout, num_blocks: int, seed: int = 0, num_host_blocks: int = 0) -> KVCache:
    """A cache with random values."""
    cache = KVCache(layout, num_blocks, num_host_blocks)
    generator = torch.Generator().manual_seed(seed)
    for keys, values in cache.layers:
        for tensor in (keys, values):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache


def layout_of(dtype: torch.dtype) -> KVLayout:
    return KVLayout(block_size=8, num_layers=3, num_kv_heads=2, head_dim=5, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_layout_counts_the_allocated_bytes(dtype: torch.dtype):
    layout = layout_of(dtype)
    assert layout.bytes_per_token == 2 * 3 * 2 * 5 * dtype.itemsize
    assert layout.bytes_per_block == 8 * layout.bytes_per_token
    cache = KVCache(layout, 4)
    sizes = {tensor.untyped_storage().nbytes() for layer in cache.layers for tensor in layer}
    assert sizes == {5 * layout.bytes_per_block}, "one allocation: the usable blocks and block 0"


def test_each_layer_has_keys_and_values_in_nhd_order_and_starts_as_zeros():
    cache = KVCache(layout_of(torch.float32), 4)
    assert len(cache.layers) == 3
    for keys, values in cache.layers:
        assert keys.shape == values.shape == (5, 8, 2, 5)
        assert keys.is_contiguous() and values.is_contiguous()
        assert not keys.any() and not values.any()
    pointers = {tensor.data_ptr() for layer in cache.layers for tensor in layer}
    assert len(pointers) == 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exported_blocks_are_imported_byte_for_byte(dtype: torch.dtype):
    source, target = filled(layout_of(dtype), 6), filled(layout_of(dtype), 9, seed=1)
    untouched = target.export_blocks([0, 1, 2, 3, 5, 6, 8])
    data = source.export_blocks([5, 1])
    assert len(data) == 2 * source.layout.bytes_per_block
    target.import_blocks([4, 7], data)
    assert target.export_blocks([4, 7]) == data
    assert target.export_blocks([7]) == source.export_blocks([1])
    assert target.export_blocks([0, 1, 2, 3, 5, 6, 8]) == untouched
    for (keys, values), (old_keys, old_values) in zip(target.layers, source.layers, strict=True):
        assert torch.equal(keys[4], old_keys[5]) and torch.equal(values[7], old_values[1])


def test_the_bytes_are_block_then_layer_then_keys_and_values():
    """The layout that other processes read: it must never change."""
    layout = KVLayout(block_size=2, num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32)
    cache = KVCache(layout, 2)
    for layer, pair in enumerate(cache.layers):
        for part, tensor in enumerate(pair):
            for block in range(3):
                tensor[block] = torch.tensor([[[0.0, 1.0]], [[2.0, 3.0]]]) + 100 * block + 10 * layer + 4 * part
    found = torch.frombuffer(bytearray(cache.export_blocks([2, 1])), dtype=torch.float32).tolist()
    assert found == [
        *(200.0 + i for i in range(8)), *(210.0 + i for i in range(8)),
        *(100.0 + i for i in range(8)), *(110.0 + i for i in range(8)),
    ]  # fmt: skip


def test_data_of_a_wrong_size_is_rejected_and_changes_nothing():
    cache = filled(layout_of(torch.float32), 3)
    before = bytes(cache.export_blocks([1, 2, 3]))
    for data in (b"", before[:-1], before + b"x"):
        with pytest.raises(ValueError, match="bytes are not 3 blocks"):
            cache.import_blocks([1, 2, 3], data)
    assert cache.export_blocks([1, 2, 3]) == before


def test_exporting_no_blocks_gives_no_bytes():
    cache = filled(layout_of(torch.bfloat16), 3)
    assert cache.export_blocks([]) == b""
    cache.import_blocks([], b"")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_include_all_layers_and_change_no_other_block(dtype: torch.dtype):
    cache = filled(layout_of(dtype), 6)
    before = [cache.export_blocks([block]) for block in range(7)]
    cache.copy_blocks([BlockCopy(5, 1), BlockCopy(5, 3), BlockCopy(2, 6)])
    after = [cache.export_blocks([block]) for block in range(7)]
    assert after == [before[source] for source in (0, 5, 2, 5, 4, 5, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swapped_blocks_are_restored_byte_for_byte(dtype: torch.dtype):
    cache = filled(layout_of(dtype), 6, num_host_blocks=3)
    before = [cache.export_blocks([block]) for block in range(7)]
    cache.swap_out([BlockCopy(5, 1), BlockCopy(2, 3), BlockCopy(5, 2)])
    assert [cache.export_blocks([block]) for block in range(7)] == before
    cache.import_blocks([2, 5], bytes(len(before[0]) * 2))
    cache.swap_in([BlockCopy(3, 4), BlockCopy(1, 5), BlockCopy(2, 6)])
    after = [cache.export_blocks([block]) for block in range(7)]
    assert after == [before[0], before[1], bytes(len(before[0])), before[3], before[2], before[5], before[5]]


def test_an_empty_list_of_copies_changes_nothing():
    cache = filled(layout_of(torch.bfloat16), 3)
    before = cache.export_blocks([0, 1, 2, 3])
    for move in (cache.copy_blocks, cache.swap_out, cache.swap_in):
        move(())
    assert cache.export_blocks([0, 1, 2, 3]) == before


@pytest.mark.parametrize("move", ["copy_blocks", "swap_out", "swap_in"])
def test_a_block_that_does_not_exist_is_an_error_and_nothing_is_copied(move: str):
    cache = filled(layout_of(torch.float32), 3, num_host_blocks=3)
    before = cache.export_blocks([0, 1, 2, 3])
    with pytest.raises(IndexError):
        getattr(cache, move)([BlockCopy(1, 2), BlockCopy(1, 4)])
    assert cache.export_blocks([0, 1, 2, 3]) == before


def test_each_host_block_is_contiguous():
    cache = KVCache(layout_of(torch.float32), 1, 4)
    assert cache.num_blocks == 1 and cache.num_host_blocks == 4
    host = cache._host_blocks
    assert host.shape[2] == 5 and host[:, :, 2].is_contiguous()
    assert host[:, :, 3].data_ptr() - host[:, :, 2].data_ptr() == cache.layout.bytes_per_block


# --- Prefaulted pages -------------------------------------------------------------------------------------------


class PrefaultRecorder:
    """Records which blocks are prefaulted, in order."""

    def __init__(self, blocks: Tensor, is_able: bool = True) -> None:
        self.blocks = blocks
        self.is_able = is_able
        self.ranges: list[tuple[int, int, int]] = []  # region, first block, number

    def __call__(self, memory: Tensor) -> bool:
        region, first = divmod((memory.data_ptr() - self.blocks.data_ptr()) // BYTES, self.blocks.shape[2])
        self.ranges.append((region, first, len(memory)))
        return self.is_able


def use_blocks(recorder: PrefaultRecorder, *block_ids: int) -> PagesAhead:
    ahead = PagesAhead(recorder.blocks, recorder)
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


def test_the_first_blocks_are_prefaulted_at_once_in_all_regions(blocks: Tensor):
    recorder = PrefaultRecorder(blocks)
    use_blocks(recorder)
    firsts, others = recorder.ranges[: 2 * LAYERS], recorder.ranges[2 * LAYERS :]
    assert firsts == [(region, 0, 1) for region in range(2 * LAYERS)], "a step may need these already"
    assert others == [(region, 1, MIN_AHEAD) for region in range(2 * LAYERS)]


def test_more_blocks_are_prefaulted_before_the_last_one_is_used(blocks: Tensor):
    recorder = PrefaultRecorder(blocks)
    use_blocks(recorder, *range(1, MIN_AHEAD // 2 + 1))
    assert len(recorder.ranges) == 4 * LAYERS
    use_blocks(recorder, *range(1, MIN_AHEAD // 2 + 2))
    first = {(begin, number) for _, begin, number in recorder.ranges[4 * LAYERS :]}
    assert {(1 + MIN_AHEAD, 1), (2 + MIN_AHEAD, MIN_AHEAD - 1)} <= first


def test_each_existing_block_is_prefaulted_once(blocks: Tensor):
    recorder = PrefaultRecorder(blocks)
    use_blocks(recorder, *range(NUM_BLOCKS), 5, NUM_BLOCKS - 1)
    for region in range(2 * LAYERS):
        mine = [(first, number) for each, first, number in recorder.ranges if each == region]
        found = [block for first, number in mine for block in range(first, first + number)]
        assert found == list(range(NUM_BLOCKS))


def test_a_system_without_prefaulting_is_tried_once(blocks: Tensor):
    recorder = PrefaultRecorder(blocks, is_able=False)
    use_blocks(recorder, *range(NUM_BLOCKS))
    assert len(recorder.ranges) == 1


def test_python_waits_for_the_thread_even_if_started_by_a_daemon(blocks: Tensor):
    """The engine thread is a daemon; one that is killed inside torch's code aborts the process."""
    created: list[PagesAhead] = []
    is_free = threading.Event()
    engine = threading.Thread(
        target=lambda: created.append(PagesAhead(blocks, lambda _: is_free.wait(60))), daemon=True
    )
    engine.start()
    engine.join()
    assert created[0]._thread.is_alive() and not created[0]._thread.daemon
    is_free.set()


def test_without_a_thread_no_page_is_prefaulted(blocks: Tensor, monkeypatch: pytest.MonkeyPatch):
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    recorder = PrefaultRecorder(blocks)
    monkeypatch.setattr(threading.Thread, "start", start)
    use_blocks(recorder, *range(NUM_BLOCKS))
    assert not recorder.ranges


def populated_bytes() -> int | None:
    """The resident bytes of 16 MiB that were populated; None if this kernel cannot."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    memory = huge_pages(32 << 20, dtype=torch.uint8)
    memory[7] = 5
    before = resident()
    if not populate(memory[: 16 << 20]):
        return None
    grown = resident() - before
    assert memory[7] == 5
    return grown


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_populated_memory_is_resident_and_keeps_its_content():
    grown = in_own_process(populated_bytes)
    if grown is None:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert 10 << 20 <= grown <= 20 << 20
