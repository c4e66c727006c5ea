"""Engines with the GPU path on the fake device; the kernels run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from app.checkpoint.model_files import ModelFiles
from app.config.settings import Config, make_config
from app.engine.build import build_engine
from app.engine.engine import Engine
from app.engine.execute.gpu.backend import GpuBackend
from app.engine.execute.gpu.shapes import StepShapes
from app.engine.kv_disk.disk_store import KVDisk
from tests.engine import driving
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.execute.gpu.fake_device import FakeDevice

SMALL = {
    "device": "cuda",
    "block_size": 8,
    "num_kv_blocks": 40,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "dtype": "auto",
}


def build(
    folder: Path,
    device: FakeDevice | None = None,
    *,
    faults: FaultyRunner | None = None,
    fused_rows: int = 0,
    finish_kernels: Callable[[], None] = lambda: None,
    kv_disk: KVDisk | None = None,
    warms_up: bool = False,
    **settings: object,
) -> Engine:
    """An engine for a checkpoint folder; an interpreted program takes a millisecond, so everything is small.

    Fused products take several milliseconds, so steps of few rows are fused only on demand. With `warms_up` all shapes
    run first, as on a GPU, and otherwise the smallest.
    """
    torch.set_num_threads(1)
    fake = device or FakeDevice()
    every = StepShapes.warm_ups

    def select_backend(config: Config, files: ModelFiles) -> GpuBackend:
        return GpuBackend(config, files.spec, fake, finish_kernels)

    with (
        patch("app.text.entry.opened_model.check_wanted_gpu"),  # there may be none
        patch("app.engine.build.select_backend", select_backend),
        patch("app.engine.execute.gpu.backend.MAX_ROWS", fused_rows),
        patch.object(StepShapes, "warm_ups", every if warms_up else lambda shapes: every(shapes)[-1:]),
    ):
        config = make_config({"model": str(folder), **SMALL, **settings})
        engine = build_engine(config, grammars=driving.make_grammars(), kv_disk=kv_disk)
    if faults is not None:
        faults.wrap(engine)
    return engine


def run(engine: Engine, max_steps: int = 500) -> list[object]:
    """Step until no request is open; return all events. The scheduler's integrity is checked after each step."""
    events: list[object] = []
    for _ in range(max_steps):
        if not engine.has_ready_work:
            return events
        events += engine.step(0.0)
        engine.scheduler.check_integrity()
    raise AssertionError("the engine does not finish")
