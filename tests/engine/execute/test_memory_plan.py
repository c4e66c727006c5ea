"""The number of blocks: given by the settings, or a share of the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.config.setting import GIB
from app.config.settings import make_config
from app.contract.errors import CannotStart
from app.engine.execute.kv_cache import KVLayout
from app.engine.execute.memory_plan import (
    check_activations,
    check_weights,
    free_memory,
    plan_num_blocks,
    plan_num_host_blocks,
)

LAYOUT = KVLayout(block_size=16, num_layers=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
LONG = 10**9


def plan(max_model_len: int = LONG, free: int = 100 * GIB, **settings: object) -> int:
    return plan_num_blocks(make_config(settings), LAYOUT, max_model_len, free)


def test_the_default_is_a_quarter_of_free_memory_at_most_4_gib():
    assert plan(free=GIB) == GIB // 4 // LAYOUT.bytes_per_block
    assert plan(free=100 * GIB) == 4 * GIB // LAYOUT.bytes_per_block


def test_the_cache_is_no_larger_than_all_sequences_can_use():
    assert plan(max_model_len=100, max_num_seqs=3) == 3 * 7
    assert plan(max_model_len=100, max_num_seqs=3, kv_cache_memory="1GiB") == 3 * 7


def test_the_settings_override_the_default_share():
    assert plan(free=GIB, num_kv_blocks=7, kv_cache_memory=1) == 7
    assert plan(free=GIB, kv_cache_memory=10 * LAYOUT.bytes_per_block + 1) == 10


@pytest.mark.parametrize("settings", [{"num_kv_blocks": 10**12}, {"kv_cache_memory": "900GiB"}])
def test_a_cache_larger_than_free_memory_is_rejected_with_both_numbers(settings: dict[str, object]):
    with pytest.raises(CannotStart, match=r"GiB; 1\.0 GiB are free"):
        plan(free=GIB, **settings)


def test_weights_larger_than_free_memory_are_rejected_before_loading():
    check_weights(GIB, GIB)
    with pytest.raises(CannotStart, match=r"take 2\.0 GiB; 1\.0 GiB are free"):
        check_weights(2 * GIB, GIB)


def test_activations_that_do_not_fit_beside_the_weights_are_rejected_with_advice():
    check_activations(GIB, 2 * GIB, 3 * GIB, 512)
    words = r"take 2\.0 GiB, and the activations 1\.1 GiB; 3\.0 GiB are free\. Lower --max-num-batched-tokens, .* 512"
    with pytest.raises(CannotStart, match=words):
        check_activations(GIB + 1, 2 * GIB, 3 * GIB, 512)


@pytest.mark.parametrize("settings", [{}, {"kv_cache_memory": LAYOUT.bytes_per_block - 1}])
def test_memory_for_less_than_one_block_is_an_error_with_advice(settings: dict[str, object]):
    with pytest.raises(CannotStart, match="--kv-cache-memory") as error:
        plan(free=LAYOUT.bytes_per_block, **settings)
    assert error.value.exit_code == 75


def host_plan(free: int, **settings: object) -> int:
    return plan_num_host_blocks(make_config(settings), LAYOUT, free)


def test_swap_space_is_counted_in_full_blocks_and_off_by_default():
    assert host_plan(0) == 0
    assert host_plan(GIB, swap_space="1GiB") == GIB // LAYOUT.bytes_per_block
    assert host_plan(GIB, swap_space=3 * LAYOUT.bytes_per_block - 1) == 2


def test_swap_space_larger_than_free_memory_is_rejected():
    for free in (GIB, 0, -GIB):
        with pytest.raises(CannotStart, match=r"--swap-space of 2\.0 GiB is more than the [01]\.0 [GK]iB"):
            host_plan(free, swap_space="2GiB")


def test_a_cache_smaller_than_one_block_is_rejected_with_what_was_given_and_needed():
    with pytest.raises(CannotStart, match=r"--kv-cache-memory is 5 bytes, and one KV block takes 32\.0 KiB; set more"):
        plan(kv_cache_memory=5)


def test_swap_space_smaller_than_one_block_is_rejected():
    with pytest.raises(CannotStart, match=r"of 31\.9 KiB is less than one KV block of 32\.0 KiB") as error:
        host_plan(GIB, swap_space=LAYOUT.bytes_per_block - 1)
    assert error.value.exit_code == 75


def machine(root: Path, available_kib: int | None, limit: str | None = None, used: str | None = None) -> Path:
    """Write fake files of /proc and /sys below `root`."""
    for name, text in (
        ("proc/meminfo", None if available_kib is None else f"MemTotal: 9 kB\nMemAvailable: {available_kib} kB\n"),
        ("sys/fs/cgroup/memory.max", limit),
        ("sys/fs/cgroup/memory.current", used),
    ):
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def test_free_memory_is_limited_by_the_system_and_the_cgroup(tmp_path: Path):
    assert free_memory(machine(tmp_path / "a", 5000)) == 5000 * 1024
    assert free_memory(machine(tmp_path / "b", 5000, "max\n", "100\n")) == 5000 * 1024
    assert free_memory(machine(tmp_path / "c", 5000, "3000\n", "1000\n")) == 2000
    assert free_memory(machine(tmp_path / "d", 1, "9000\n", "1000\n")) == 1024
    assert free_memory(machine(tmp_path / "e", 5000, "1000\n", "3000\n")) == 0
    assert free_memory(tmp_path / "nothing") == 4 * GIB
    assert free_memory() > 0
