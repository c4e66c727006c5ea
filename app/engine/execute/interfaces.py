"""The protocols of the engine's backends, which the CPU and the GPU implement."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from app.checkpoint.sizes import StoredType
from app.contract.engine_counts import GraphCounts
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.execute.masks import Masks
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.kernels.ops import Ops
from app.models.loader import Allocate
from app.models.weights import DecoderWeights, Packer
from app.text.grammar.cache import GrammarCache


class InFlight(Protocol):
    """A launched step. `run_ahead`: steps, with this one, that may be in flight when the next one is launched."""

    plan: StepPlan
    run_ahead: int

    def wait(self) -> StepResult:
        """Wait until the step is computed and return its samples."""


class Runner(Protocol):
    """Executes plans in order. Engine thread only."""

    @property
    def masks(self) -> Masks:
        """The constraints of the running sequences."""

    @property
    def counts(self) -> GraphCounts:
        """The graphs recorded so far. A shape whose captures failed has none, and its steps take longer."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start computing a plan.

        If this raises, the row changes of the plan have been applied: they come first, which makes no difference to the
        plan's copies. Which blocks have been copied is then unknown.
        """

    @property
    def has_idle_work(self) -> bool:
        """Whether there is work that makes later steps faster, for times without requests."""

    def work_idly(self) -> None:
        """Do a piece of idle work, of well under a second, while no step is in flight."""


class Backend(Protocol):
    """The operations that differ between devices. Engine thread only.

    The order is: load weights into the memory of `allocate`, `prepare`, make the cache, `make_runner`. So the cache is
    allocated after all else that needs much memory.
    """

    is_on_host: bool  # weights and cache are in the host's memory
    device: torch.device  # of weights and cache
    allocate: Allocate  # for the memory that weights are read into
    packer: Packer  # packs weights into the format of this backend
    quantization: str | None  # of the weights, as in the setting of that name; None where quantizing saves no memory
    run_ahead: int  # steps that may be in flight when the next one is planned
    activation_memory: int  # bytes of activations beside those of `prepare`, known when the runner is made
    graph_memory: int  # bytes that are reserved for graphs, which are captured later; 0 without graphs

    @property
    def ops(self) -> Ops:
        """The operations outside a step's graph: copies of blocks."""

    def free_memory(self) -> int:
        """Return the free bytes in the memory of weights and cache."""

    def cache_memory(self, free_bytes: int) -> int:
        """Return the default bytes of the KV cache, given the free bytes."""

    def kv_layout(self) -> KVLayout:
        """Return the memory layout of a KV block."""

    def pin(self, tensor: Tensor) -> None:
        """Pin host memory, so that the device reads and writes it in place."""

    def synchronize(self) -> None:
        """Wait until the device has finished all issued work."""

    @property
    def kernels(self) -> str:
        """Which kernels compute: the results of others may differ in their last bits."""

    def finish_kernels(self) -> None:
        """Wait until the kernels are compiled; nothing may be computed on the device before. Idempotent."""

    def planned_activations(self, stored_type: StoredType) -> int:
        """Return the bytes of host memory that `prepare` and the runner will allocate; 0 on a GPU, which says no.

        `stored_type` is that of the matrices that stay as they are in the model's files.
        """

    def prepare(self, max_model_len: int, eos_token_ids: Collection[int]) -> int:
        """Allocate the memory that steps need besides weights and cache; return its bytes."""

    def make_runner(
        self, weights: DecoderWeights, cache: KVCache, limits: SchedulerLimits, grammars: GrammarCache
    ) -> Runner:
        """Return the runner of steps over weights and cache, whose masks come from `grammars`."""
