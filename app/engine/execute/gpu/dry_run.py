"""The whole path of a step without a device: tensors of no memory, the real wrappers, nothing launched.

What a step launches, and how its kernels are specialized, follows from the model, the settings and the GPU's facts
alone; no operation depends on a value of the device. So a dry run meets every kernel that the GPU will be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from app.checkpoint.spec import ModelSpec
from app.config.devices import MIN_DEPENDENT_CAPABILITY
from app.config.settings import Config
from app.engine.execute.gpu.backend import GpuBackend
from app.engine.execute.gpu.device import Copy, Device, Work
from app.engine.execute.gpu.kv_calibration import MAX_TOKENS, compute_text
from app.engine.execute.interfaces import Runner
from app.engine.execute.kv_cache import KVCache
from app.engine.schedule.limits import SchedulerLimits
from app.kernels.triton.dependent import launches
from app.models.loader import TensorSource, load_weights
from app.models.weights import DecoderWeights
from app.text.grammar.cache import GrammarCache

_NUM_BLOCKS = 64


class NoGraph:
    """Stands in for a captured graph and for an event."""

    def replay(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, later: object) -> float:
        """Return no time."""
        return 0.0


class DryDevice(Device):
    """Stands in for a GPU with these facts; work is called at once, and computes nothing over meta tensors."""

    def __init__(self, capability: tuple[int, int], num_processors: int, *, dependent_launches: bool = True) -> None:
        self.torch_device = torch.device("meta")
        self.capability, self.num_processors = capability, num_processors
        self._is_dependent = dependent_launches and capability >= MIN_DEPENDENT_CAPABILITY

    def run(self, work: Work) -> None:
        with launches(is_dependent=self._is_dependent):
            work()

    def record_event(self) -> Any:
        return NoGraph()

    def fetch(self, copies: Iterable[Copy], after: object) -> Any:
        """Leave the targets as they are."""
        return NoGraph()

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def pin(self, tensor: Tensor) -> None:
        """Do nothing."""

    def capture(self, work: Work) -> Any:
        self.run(work)
        return NoGraph()

    def memory(self) -> tuple[int, int]:
        """Return more than there is anywhere."""
        return 1 << 50, 1 << 50

    def synchronize(self) -> None:
        """Do nothing."""


class NoWeights(TensorSource):
    """A source of weights that are never read."""

    def read(self, name: str, out: Tensor) -> None:
        """Leave `out` as it is."""


def dry_run(config: Config, spec: ModelSpec, device: DryDevice) -> Runner:
    """Do what a server does before it is ready, up to and with the steps over padding; return the runner.

    Raises:
        CannotStart, ConfigurationError: see GpuBackend.
    """
    backend, weights = _load(config, spec, device)
    max_model_len = config.model.max_model_len or spec.max_position
    backend.prepare(max_model_len, spec.eos_token_ids)
    num_host_blocks = int(config.cache.swap_space > 0)
    cache = KVCache(backend.kv_layout(), _NUM_BLOCKS, num_host_blocks, backend.ops, backend.device)
    scheduler = config.scheduler
    limits = SchedulerLimits(
        num_blocks=_NUM_BLOCKS,
        block_size=config.cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=max_model_len,
        run_ahead=backend.run_ahead,
        num_host_blocks=num_host_blocks,
        speculative_ngram=scheduler.speculative_ngram,
    )
    return backend.make_runner(weights, cache, limits, GrammarCache())


def dry_calibration(config: Config, spec: ModelSpec, device: DryDevice) -> None:
    """Do what calibrating the scales of an FP8 cache does, which a start adds where the checkpoint contains none."""
    backend, weights = _load(config, spec, device)
    compute_text(spec, weights, backend.ops, backend.device, [0] * min(MAX_TOKENS, spec.max_position))


def _load(config: Config, spec: ModelSpec, device: DryDevice) -> tuple[GpuBackend, DecoderWeights]:
    backend = GpuBackend(config, spec, device)
    how = (lambda share: None, backend.packer, backend.allocate)
    return backend, load_weights(spec, NoWeights(), *how)
