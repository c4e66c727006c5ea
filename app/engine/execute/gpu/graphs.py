"""CUDA graphs of the step, one for each shape, captured when the engine is idle or when a shape is used again.

The server is ready before any graph is captured: until a shape has its graph, its operations are called from Python one
by one, which gives the same results and takes longer.
"""

from __future__ import annotations

import logging
from functools import partial

from tqdm import tqdm

from app.engine.execute.gpu.device import Device, Graph
from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.shapes import StepShape
from app.engine.execute.gpu.step import DeviceStep

_log = logging.getLogger("quire.engine")

# A shape that has been used so often is worth the 20 to 100 ms of a capture, even while requests wait.
PATIENCE = 2


class EagerSteps:
    """Calls every operation from Python, every time (`--enforce-eager`)."""

    num_graphs = num_missing = 0

    def __init__(self, device: Device, step: DeviceStep) -> None:
        self._device, self.step = device, step

    def run(self, inputs: StepShape) -> None:
        """See StepGraph.run."""
        self._device.run(partial(self.step.run, inputs))

    def capture_next(self) -> None:
        """See Steps.capture_next: nothing to capture."""


class GraphedSteps:
    """Replays graphs, and captures those of `shapes`, given in the order of capture. Engine thread only.

    A shape that cannot be captured, or is not among `shapes`, stays eager.
    """

    def __init__(self, device: Device, step: DeviceStep, memory: StepMemory, shapes: list[StepShape]) -> None:
        self._device, self.step, self.memory = device, step, memory
        self._missing = dict.fromkeys(shapes)
        self._graphs: dict[StepShape, Graph] = {}
        self._num_uses: dict[StepShape, int] = {}
        self._bar: tqdm | None = None

    @property
    def num_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    @property
    def num_missing(self) -> int:
        """Shapes without a graph that could have one."""
        return len(self._missing)

    def run(self, inputs: StepShape) -> None:
        """See StepGraph.run."""
        graph = self._graphs.get(inputs)
        if graph is None and inputs in self._missing:
            num_uses = self._num_uses[inputs] = self._num_uses.get(inputs, 0) + 1
            if num_uses > PATIENCE:  # earlier uses have compiled and warmed up all that a capture needs
                graph = self._capture(inputs)
        self._device.run(partial(self.step.run, inputs) if graph is None else graph.replay)

    def capture_next(self) -> None:
        """Capture the next shape. Afterwards the memory's inputs are padding, and its counter is one higher."""
        shape = next(iter(self._missing))
        if self._bar is None:
            total = len(self._missing) + len(self._graphs)
            self._bar = tqdm(
                total=total, initial=len(self._graphs), desc="capturing graphs", unit="graph", disable=None
            )
        self._capture(shape, warm_up=True)
        self._bar.n = self._bar.total - len(self._missing)
        self._bar.refresh()
        if not self._missing:
            self._bar.close()

    def _capture(self, shape: StepShape, *, warm_up: bool = False) -> Graph | None:
        """Capture the step of a shape, which must have been run before: here, over padding, or for requests."""
        del self._missing[shape]
        work = partial(self.step.run, shape)
        try:
            if warm_up:
                self._device.run(self.memory.pad)
                self._device.run(work)
            graph = self._graphs[shape] = self._device.capture(work)
        except Exception as error:  # of torch, of the driver, or of Triton's compiler
            _log.warning("steps of %s stay without a CUDA graph: %r", shape, error)
            return None
        return graph
