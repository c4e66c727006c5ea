"""Engines over a scripted device: `python -m benchmarks.gpu_host.paced serve MODEL ...` is `quire serve` over one.

All but the device is the real thing: engine thread, scheduler, the GPU's runner with its staging, output, server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from unittest.mock import patch

import torch
from torch import Tensor

from app.checkpoint.spec import ModelSpec
from app.cli import main
from app.config.settings import Config
from app.contract.engine_counts import GraphCounts
from app.engine.execute.gpu.backend import GpuBackend
from app.engine.execute.gpu.device import Device
from app.engine.execute.interfaces import InFlight, Runner
from app.engine.execute.kv_cache import KVCache
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.step_plan import StepPlan
from app.models.weights import DecoderWeights
from app.text.grammar.cache import GrammarCache
from benchmarks.gpu_host.device import PacedDevice
from benchmarks.gpu_host.step_times import STEP_TIMES


class NoWeights:
    """See TensorSource: weights that are never read."""

    def __init__(self, seed: int, device: torch.device) -> None:
        pass

    def read(self, name: str, out: Tensor) -> None:
        """Leave `out` as it is."""


class PacedRunner:
    """Implements `Runner` by another one; the device hears of each plan before."""

    def __init__(self, runner: Runner, device: PacedDevice) -> None:
        self._runner, self._device = runner, device
        self.masks = runner.masks

    def launch(self, plan: StepPlan) -> InFlight:
        """See Runner.launch."""
        self._device.expect(plan)
        return self._runner.launch(plan)

    @property
    def counts(self) -> GraphCounts:
        """See Runner.counts."""
        return self._runner.counts

    @property
    def num_graph_shapes(self) -> int:
        """See Runner.num_graph_shapes."""
        return self._runner.num_graph_shapes

    @property
    def has_idle_work(self) -> bool:
        """See Runner.has_idle_work."""
        return self._runner.has_idle_work

    def work_idly(self) -> None:
        """See Runner.work_idly."""
        self._runner.work_idly()


class PacedBackend(GpuBackend):
    """The GPU's backend over a scripted device, which hears of every plan."""

    def __init__(self, config: Config, spec: ModelSpec, device: PacedDevice) -> None:
        super().__init__(config, spec, cast("Device", device))
        self._paced = device

    def make_runner(
        self, weights: DecoderWeights, cache: KVCache, limits: SchedulerLimits, grammars: GrammarCache
    ) -> Runner:
        """See Backend.make_runner."""
        return PacedRunner(super().make_runner(weights, cache, limits, grammars), self._paced)


@contextmanager
def paced_engines() -> Iterator[list[PacedDevice]]:
    """Let all engines that are built meanwhile run on scripted devices, which are noted in the list."""
    devices: list[PacedDevice] = []

    def select_backend(config: Config, spec: ModelSpec) -> GpuBackend:
        devices.append(PacedDevice(STEP_TIMES[Path(config.model.model).name].seconds, spec.vocab_size))
        return PacedBackend(config, spec, devices[-1])

    with (
        patch.multiple("app.engine.build", select_backend=select_backend, DummySource=NoWeights),
        patch("app.config.devices.missing_gpu", return_value=""),  # nobody needs one
    ):
        yield devices


if __name__ == "__main__":
    with paced_engines():
        sys.exit(main(sys.argv[1:]))
