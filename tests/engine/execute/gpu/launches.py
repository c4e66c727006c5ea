"""Lists the kernels that the steps of an engine launch, and their specializations, without a GPU or computation.

    python -m tests.engine.execute.gpu.launches FOLDER SETTINGS

FOLDER contains a config.json, SETTINGS is JSON. The backend runs with meta tensors, and Triton's own binder chooses the
specializations as on a GPU; every shape runs twice. Writes one JSON line per shape: the numbers of kernel launches,
of cuBLAS products and of the kernels' programs, the kernels that were not launched dependently, and the number of
specializations that were new in the second run.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import json
import sys
from collections import Counter
from math import prod
from pathlib import Path

import torch
import triton
from triton.runtime.jit import JITFunction

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.engine.execute.gpu.backend import GpuBackend
from app.engine.execute.gpu.graphs import DeviceStep
from app.engine.execute.kv_cache import KVCache
from app.kernels.triton import dependent
from app.models.decoder import Decoder
from app.models.loader import load_weights
from tests.kernels.triton.compile_kernels import Driver

MAX_GRID = (2**31 - 1, 65535, 65535)
PRODUCTS = ("mm", "addmm", "index_select")


class MetaDevice:
    """A device that has only properties."""

    torch_device = torch.device("meta")
    pin = synchronize = None
    capability = (9, 0)
    num_processors = 132

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory."""
        return torch.zeros(*shape, dtype=dtype)


class MetaSource:
    """Weights that are never read."""

    def read(self, name: str, out: torch.Tensor) -> None:
        """Leave `out` as it is."""


class LaunchRecorder:
    """Replaces launches and products: counts them, and records the specializations."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.programs: Counter[str] = Counter()
        self.plain: set[str] = set()
        self.known: set[str] = set()

    def launch(self, kernel, *args, grid, warmup, **kwargs) -> None:
        """Replaces JITFunction.run."""
        sizes = (*grid, 1, 1)[:3]
        assert all(size <= most for size, most in zip(sizes, MAX_GRID, strict=True)), f"{kernel.__name__}: {grid}"
        binder = kernel.device_caches[90][-1]
        _, specialization, options = binder(*args, **kwargs, debug=False, instrumentation_mode="")
        self.known.add(f"{kernel.__name__} {specialization} {options}")
        if not (kwargs.get("launch_pdl") and kwargs["IS_DEPENDENT"]):
            self.plain.add(kernel.__name__)
        self.counts[kernel.__name__] += 1
        self.programs[kernel.__name__] += prod(sizes)

    def product(self, name: str):
        """Replaces an operation of torch that writes to `out`."""

        def count(*args, out, **kwargs):
            self.counts[name] += 1
            return out

        return count


def make_step(folder: Path, settings: dict) -> tuple[DeviceStep, list]:
    """The step of an engine, and its shapes."""
    config = make_config({"model": str(folder), "device": "cuda", "load_format": "dummy", **settings})
    spec = inspect(config.model).spec
    backend = GpuBackend(config, spec, MetaDevice())
    weights = load_weights(spec, MetaSource(), allocate=backend.allocate)
    backend.prepare(config.model.max_model_len or spec.max_position, (1,))
    cache = KVCache(backend.kv_layout(), 512, 0, backend.ops, backend.device)
    decoder = Decoder(spec, weights, backend._ropes, backend.ops)
    step = DeviceStep(decoder, cache.layers, backend._arena, backend._memory, backend._sampler)
    return step, backend._shapes.all()


def main() -> None:
    """Count what the steps of the engine launch."""
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    triton.runtime.driver.set_active(Driver(90))
    launches = LaunchRecorder()
    JITFunction.run = lambda kernel, *args, **kwargs: launches.launch(kernel, *args, **kwargs)
    for name in PRODUCTS:
        setattr(torch, name, launches.product(name))
    step, shapes = make_step(folder, settings)
    with dependent.launches(is_dependent=True):
        run_all(step, shapes, launches)


def run_all(step: DeviceStep, shapes: list, launches: LaunchRecorder) -> None:
    """Run every shape twice and report."""
    first = {}
    for shape in shapes:
        launches.counts.clear()
        launches.programs.clear()
        step.run(shape)
        first[shape] = {"launches": dict(launches.counts), "programs": dict(launches.programs)}
    for shape in shapes:
        num_known = len(launches.known)
        step.run(shape)
        new = len(launches.known) - num_known
        print(json.dumps({"shape": shape, **first[shape], "new": new, "plain": sorted(launches.plain)}))


if __name__ == "__main__":
    main()
