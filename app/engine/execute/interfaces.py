"""What an engine asks of whoever computes its steps: the protocols that the CPU and the GPU implement."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.faults import FaultPlan
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.kernels.ops import Ops
from app.models.loader import Allocate
from app.models.weights import DecoderWeights, Packer


class InFlight(Protocol):
    """A launched step. `run_ahead`: how many steps, this one included, may be in flight when the next is launched."""

    plan: StepPlan
    run_ahead: int

    def wait(self) -> StepResult:
        """Wait until the step is computed and return its samples."""


class Runner(Protocol):
    """Executes plans in order. Engine thread only."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start computing a plan.

        Whatever this raises, the row changes of the plan have been applied: they come first, which makes no difference
        to its copies. Which blocks have been copied is then unknown.
        """

    @property
    def num_graphs(self) -> int:
        """CUDA graphs captured so far."""

    @property
    def has_idle_work(self) -> bool:
        """Whether there is something that makes later steps faster, for when nobody waits."""

    def work_idly(self) -> None:
        """Do a piece of that, of well under a second; there is no step in flight."""


class Backend(Protocol):
    """What differs between devices. Engine thread only.

    The order is: load weights to what `allocate` gives, `prepare`, make the cache, `make_runner`. So the cache comes
    after all else that needs much memory.
    """

    @property
    def is_on_host(self) -> bool:
        """Whether weights and cache share the memory of everything else."""

    @property
    def place(self) -> torch.device:
        """Where weights and cache are."""

    @property
    def allocate(self) -> Allocate:
        """Gives the memory that weights are read to."""

    @property
    def packer(self) -> Packer:
        """Brings weights into the form of this backend."""

    @property
    def quantization(self) -> str | None:
        """How the weights are kept, as in the setting of that name; None where quantizing saves no memory."""

    @property
    def ops(self) -> Ops:
        """For what is done outside a step's graph: copies of blocks."""

    @property
    def run_ahead(self) -> int:
        """How many steps may be in flight when the next one is planned."""

    @property
    def graph_memory(self) -> int:
        """Bytes that are left for graphs, which are captured later; 0 where that takes none."""

    def free_memory(self) -> int:
        """Return the bytes that may still be taken where weights and cache are."""

    def cache_memory(self, free_bytes: int) -> int:
        """Return the bytes of the KV cache where nothing is set, of so many that are free."""

    def kv_layout(self) -> KVLayout:
        """Return how a KV block lies in memory."""

    def pin(self, tensor: Tensor) -> None:
        """Let the device read and write host memory in place."""

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""

    def prepare(self, max_model_len: int, eos_token_ids: Collection[int]) -> int:
        """Allocate what steps need besides weights and cache; return its bytes."""

    def make_runner(
        self, weights: DecoderWeights, cache: KVCache, limits: SchedulerLimits, faults: FaultPlan | None
    ) -> Runner:
        """Return what computes steps over weights and cache."""


Inputs = TypeVar("Inputs", contravariant=True)
Output = TypeVar("Output", covariant=True)


class StepGraph(Protocol[Inputs, Output]):
    """Runs the decoder over one step's inputs; the forms for a GPU are in gpu/graphs.py. Engine thread only.

    Copies and swaps of blocks are no part of it: their number changes from step to step, so they run before it.
    """

    def run(self, inputs: Inputs) -> Output:
        """Compute a step, or begin to."""
