"""Compiles the kernels of one model, with one of its layers: what is compiled depends on widths, not on layers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.gpu.engines import engine
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import MAX_MODEL_LEN, write_model
from benchmarks.gpu.offline import settings_for
from benchmarks.gpu.tasks import Task

NUM_KV_BLOCKS = 2048


def measure(task: Task) -> Iterator[Figure]:
    """Build an engine of one layer and capture its graphs; see Measures."""
    began = time.perf_counter()
    name, _, variant = task.row.partition(", ")
    model = write_model(name, task.folder, num_layers=1)
    settings = {"device": "cuda", "max_model_len": MAX_MODEL_LEN, "num_kv_blocks": NUM_KV_BLOCKS}
    with engine(model, **settings, **settings_for(variant)):
        pass
    yield Figure(f"{task.row}, compiled and captured", "s", (time.perf_counter() - began,))
