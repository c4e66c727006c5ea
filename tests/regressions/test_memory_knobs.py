"""Memory is sized once, after the weights are loaded, and an error names a number that works.

Others: vllm#57656 (following the advice of the error runs out of memory again), ovg-project/kvcached#110 ("free
memory less than desired utilization"), vllm#28051, vllm#27508, vllm#21489. Errors at startup and their exit code:
tests/server/test_serve.py, tests/engine/test_build.py; memory that runs out in a step: tests/engine/test_recovery.py.
"""

from __future__ import annotations

import logging
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.config.setting import GIB, MIB
from app.config.settings import make_config
from app.contract.errors import CannotStart
from app.engine import build
from app.engine.execute.cpu.backend import HostBackend
from app.engine.execute.kv_cache import KVLayout
from app.engine.execute.memory_plan import plan_num_blocks, plan_num_host_blocks
from tests.checkpoints import tiny

LAYOUT = KVLayout(block_size=16, num_layers=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
ENDLESS = 10**9
FREE = st.integers(MIB, 64 * GIB)


def test_the_pool_is_sized_after_the_weights_are_loaded(monkeypatch: pytest.MonkeyPatch):
    free = iter((GIB, 8 * MIB))  # before the weights are loaded, and after
    monkeypatch.setattr(HostBackend, "free_memory", lambda self: next(free, 0))
    engine = build.build_engine(make_config({"model": str(tiny("Llama"))}))
    block_bytes = 16 * 2 * 2 * 2 * 16 * 4  # tokens, keys and values, layers, heads, width, float32
    assert engine.stats().blocks.num_blocks == 8 * MIB // 4 // block_bytes


def test_startup_logs_the_uses_of_memory_in_one_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "quire.engine")
    folder = tiny("Llama")
    build.build_engine(make_config({"model": str(folder), "num_kv_blocks": 256, "swap_space": "1MiB"}))
    (line,) = [record.getMessage() for record in caplog.records if "left free" in record.getMessage()]
    parts = re.findall(r"(weights|activations|KV cache of 4,096 tokens|swap space|left free) ([\d.]+) [MG]iB", line)
    sizes = {name: float(size) for name, size in parts if float(size) > 0}
    assert len(sizes) == 5, line
    assert (sizes["KV cache of 4,096 tokens"], sizes["swap space"]) == (2.0, 1.0)
    assert abs(sizes["weights"] - (folder / "model.safetensors").stat().st_size / MIB) < 0.1


@given(FREE)
def test_without_settings_the_pool_takes_a_part_of_free_memory_and_always_fits(free: int):
    num_blocks = plan_num_blocks(make_config({}), LAYOUT, ENDLESS, free)
    assert 1 <= num_blocks <= free // 4 // LAYOUT.bytes_per_block


@given(FREE, st.sampled_from(("num_kv_blocks", "kv_cache_memory", "swap_space")))
def test_following_the_advice_of_an_error_leads_to_a_start(free: int, setting: str):
    """The free memory, or the sufficient number, that the error names is a valid value of the setting it names."""

    def start(**settings: object) -> None:
        config = make_config(settings)
        if setting == "swap_space":
            plan_num_host_blocks(config, LAYOUT, free)
        else:
            plan_num_blocks(config, LAYOUT, ENDLESS, free)

    with pytest.raises(CannotStart) as raised:
        start(**{setting: 2**50 if setting != "num_kv_blocks" else 2**40})
    message = raised.value.message
    assert f"--{setting.replace('_', '-')}" in message
    pattern = r"enough for (\d+)" if setting == "num_kv_blocks" else r"([\d.]+ \wiB) (?:that )?are free"
    found = re.search(pattern, message)
    assert found is not None
    start(**{setting: int(found[1]) if setting == "num_kv_blocks" else found[1]})
