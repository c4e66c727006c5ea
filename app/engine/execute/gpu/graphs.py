"""The step on the device, and its CUDA graphs: one for each shape, captured when the engine is idle or a shape returns.

The server is ready before any graph is captured: until a shape has its graph, its operations are called from Python one
by one, which gives the same results and takes longer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from app.contract.engine_counts import GraphCounts
from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.sampler import DeviceSampler
from app.engine.execute.gpu.shapes import StepShape
from app.engine.recovery import is_device_broken
from app.kernels.triton.rows import fill_unknown, gather_decodes
from app.models.decoder import Arena, Decoder

_log = logging.getLogger("quire.engine")

# A shape that has been used so often is worth the 20 to 100 ms of a capture, even while requests wait.
MAX_EAGER_USES = 2
# A capture may fail because of what another thread did at that moment.
MAX_CAPTURES = 2


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Gather, model, LM head, sample, advance. No operation depends on a value of the host, or allocates memory.

    The arena's logits are those of the newest step. Engine thread only.
    """

    decoder: Decoder
    kv_cache: Sequence[tuple[Tensor, Tensor]]
    arena: Arena
    memory: StepMemory
    sampler: DeviceSampler

    @torch.inference_mode()
    def run(self, shape: StepShape) -> None:
        """Compute the step whose inputs are in the step memory. Work for `Device.run` and `Device.capture`."""
        inputs, state_SW = self.memory.inputs(shape), self.memory.state_SW
        if shape.is_decode:
            gather_decodes(
                state_SW,
                inputs.sampled_rows_R,
                ids_T=inputs.ids_T,
                positions_T=inputs.positions_T,
                state_rows_T=inputs.state_rows_T,
            )
        else:
            fill_unknown(state_SW, ids_T=inputs.ids_T, state_rows_T=inputs.state_rows_T)
        self.decoder.ops.begin_step(inputs.paged)
        arena = self.arena.first(shape.num_rows, shape.num_logit_rows)
        logits_RV = self.decoder.forward(inputs.ids_T, inputs.logit_rows_R, self.kv_cache, arena)
        self.sampler.sample(logits_RV, inputs)


class StepGraphs:
    """Replays graphs, and captures those of `shapes`, given in the order of capture. Engine thread only.

    A shape that cannot be captured, or is not among `shapes`, stays eager: with `--enforce-eager` there are none.
    `num_shapes` are the shapes to be captured, `counts` has the captures.
    """

    def __init__(self, device: Device, step: DeviceStep, memory: StepMemory, shapes: list[StepShape]) -> None:
        self._device, self.step, self.memory = device, step, memory
        self.num_shapes, self.counts = len(shapes), GraphCounts()
        self._missing = dict.fromkeys(shapes)
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._num_uses: dict[StepShape, int] = {}
        self._bar: tqdm | None = None

    @property
    def num_missing(self) -> int:
        """Shapes without a graph that could have one."""
        return len(self._missing)

    def run(self, shape: StepShape) -> None:
        """Issue the step of a shape, whose inputs are in the step memory."""
        graph = self._graphs.get(shape)
        if graph is None and shape in self._missing:
            num_uses = self._num_uses[shape] = self._num_uses.get(shape, 0) + 1
            if num_uses > MAX_EAGER_USES:  # earlier uses have compiled and warmed up all that a capture needs
                graph = self._capture(shape)
        if graph is None:
            self.counts.num_eager_steps += 1
            self._device.run(partial(self.step.run, shape))
        else:
            self.counts.num_graph_steps += 1
            self._device.run(graph.replay)

    def capture_next(self) -> None:
        """Capture the next shape. Afterwards the memory's inputs are padding, and its counter is one higher."""
        shape = next(iter(self._missing))
        if self._bar is None:
            self._bar = tqdm(
                desc="capturing graphs", unit="graph", total=self.num_shapes, initial=len(self._graphs), disable=None
            )
        self._capture(shape, warm_up=True)
        self._bar.n = self.num_shapes - len(self._missing)
        self._bar.refresh()
        if not self._missing:
            self._bar.close()

    def _capture(self, shape: StepShape, *, warm_up: bool = False) -> torch.cuda.CUDAGraph | None:
        """Capture the step of a shape, which must have been run before: here, over padding, or for requests."""
        del self._missing[shape]
        work = partial(self.step.run, shape)
        for attempt in range(1, MAX_CAPTURES + 1):
            try:
                if warm_up:
                    self._device.run(self.memory.pad)
                    self._device.run(work)
                graph = self._graphs[shape] = self._device.capture(work)
                self.counts.num_captured += 1
                return graph
            except Exception as error:  # of torch, of the driver, or of Triton's compiler
                if is_device_broken(error):
                    raise
                self.counts.num_failures += 1
                then = "trying once more" if attempt < MAX_CAPTURES else "these steps stay slower, called one by one"
                _log.warning("no CUDA graph of %s: %r; %s", shape, error, then)
        return None
