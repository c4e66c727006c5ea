"""Decode steps of an engine replayed without it, over sequences that are made up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from app.engine.engine import Engine
from app.engine.execute.gpu.shapes import StepShape
from app.kernels.triton.row_layout import FLAGS, POSITION, TABLE, TEMPERATURE, TOKEN, TOP_P, float_bits


class ReplayedStep:
    """Captures steps of an idle engine on a GPU, and replays them; `close` leaves it so that it can go on.

    It reaches into the engine's runner: what is measured is to be the very step that the engine runs.
    """

    def __init__(self, engine: Engine, block_size: int) -> None:
        runner: Any = engine.runner
        self._runner, self._block_size = runner, block_size
        self._device, self._step, self._memory = self._runner.device, self._runner.steps.step, self._runner.steps.memory
        # Keys and values of zeros would take less power, and so less time, than real ones.
        with torch.inference_mode():
            for cache in self._runner.cache.layers:
                for part in cache:
                    part.normal_()
        self._saved = self._memory.buffer.clone()
        self._graph: Any = None
        self._batch = self._context = 0

    def prepare(self, batch: int, context: int, num_blocks: int) -> None:
        """Let `batch` rows stand at the end of a context, with so many blocks each, and capture their step.

        Of blocks and rows the engine must have as many.
        """
        self._batch, self._context = batch, context
        device = self._device.torch_device
        with torch.inference_mode():
            blocks = 1 + torch.arange(batch * num_blocks, dtype=torch.int32, device=device)
            self._memory.state_SW[1 : batch + 1, TABLE : TABLE + num_blocks] = blocks.view(batch, num_blocks)
            begin = self._memory.offsets["sampled_rows"]
            rows = torch.arange(1, batch + 1, dtype=torch.int32, device=device)
            self._memory.buffer[begin : begin + batch] = rows
        self._stand()
        step = self._run_step()
        self._device.run(step)
        self._device.synchronize()
        self._graph = self._device.capture(step)

    def seconds(self, count: int) -> float:
        """Return the seconds of one of so many replays, with nothing between them; each adds a token."""
        self._stand()
        self._device.run(self._graph.replay)  # warms up
        begin = self._device.record_event()
        for _ in range(count):
            self._device.run(self._graph.replay)
        end = self._device.record_event()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / count

    def num_nodes(self) -> int | str:
        """Return the nodes of the step's graph, or why they cannot be counted."""
        try:
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            self._device.run(partial(_capture, graph, self._device._pool, self._run_step()))
            count = ctypes.c_size_t(0)
            driver = ctypes.CDLL("libcuda.so.1")
            code = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
        except (OSError, AttributeError, RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return count.value if code == 0 else f"cuGraphGetNodes returned {code}"

    def close(self) -> None:
        """Put back what the engine had in the device's memory."""
        self._graph = None
        with torch.inference_mode():
            self._memory.buffer.copy_(self._saved)
        self._device.synchronize()
        self._runner.inputs.invalidate_inputs()
        self._runner.sampler.rings.correct_counter()

    def _run_step(self) -> Callable[[], None]:
        num_splits = self._runner.inputs.shapes.decode(self._batch, self._context).num_splits
        return partial(self._step.run, StepShape(self._batch, self._batch, True, num_splits))

    def _stand(self) -> None:
        """Reset the rows to the context; they are sampled at a temperature."""
        self._device.synchronize()
        with torch.inference_mode():
            rows = self._memory.state_SW[1 : self._batch + 1]
            rows[:, TOKEN] = torch.arange(1, self._batch + 1, dtype=torch.int32, device=self._device.torch_device)
            rows[:, FLAGS] = 0
            rows[:, TEMPERATURE], rows[:, TOP_P] = float_bits(0.6), float_bits(1.0)
            rows[:, POSITION] = self._context - 1
        self._device.synchronize()  # the step runs on another stream


def _capture(graph: torch.cuda.CUDAGraph, pool: Any, work: Callable[[], None]) -> None:
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
