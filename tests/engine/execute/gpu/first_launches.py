"""Launch all that a start launches, through Triton's own path up to the driver: does its cache have every kernel?

    python -m tests.engine.execute.gpu.first_launches FOLDER SETTINGS CAPABILITY PROCESSORS

Writes JSON: launches, kernels found in the cache, kernels that had to be compiled.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import json
import sys
from collections import Counter
from types import SimpleNamespace

import triton
from triton.runtime.jit import JITFunction

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from app.engine.execute.gpu.dry_run import DryDevice, dry_run
from app.kernels.triton.specializations import CompileOnlyDriver, Specializations


class LaunchingDriver(CompileOnlyDriver):
    """Loads any machine code, and counts the launches."""

    def __init__(self, capability: tuple[int, int], counts: Counter[str]) -> None:
        super().__init__(capability)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 227 * 1024},
            load_binary=lambda *code: (object(), object(), 32, 0, 1024),
        )
        self.launcher_cls = lambda source, metadata: lambda *arguments: counts.update(["launches"])


def main() -> None:
    """Launch, and report."""
    folder, settings, capability, processors = sys.argv[1:]
    config = make_config({"model": folder, "device": "cuda", "load_format": "dummy", **json.loads(settings)})
    major, minor = map(int, capability.split("."))
    counts: Counter[str] = Counter()
    compiled = []

    def listen(*, src, cache_hit, **rest) -> None:
        counts["found"] += cache_hit
        compiled.extend([] if cache_hit else [src.name])

    triton.knobs.compilation.listener = listen
    run = JITFunction.run
    with Specializations((major, minor)):  # torch computes nothing in it
        JITFunction.run = run
        triton.runtime.driver.set_active(LaunchingDriver((major, minor), counts))
        dry_run(config, inspect(config.model).spec, DryDevice((major, minor), int(processors)))
    print(json.dumps({**counts, "compiled": compiled}))


if __name__ == "__main__":
    main()
