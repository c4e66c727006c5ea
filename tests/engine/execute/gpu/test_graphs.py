"""When graphs are captured, and that steps without a graph are computed too."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from app.engine.execute.gpu.graphs import MAX_EAGER_USES, StepGraphs
from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.shapes import StepShape, StepShapes
from tests.engine.execute.gpu.fake_device import FakeDevice
from tests.engine.execute.gpu.made_grids import grids

SHAPES = StepShapes(4, 64, 4, 128, grids())
SHORT = 100  # tokens of a context
NOT_PERMITTED = RuntimeError("operation not permitted when stream is capturing")


class CountingStep:
    """A step that counts in a tensor how often each shape is computed, and records the calls from Python."""

    def __init__(self) -> None:
        self.calls: list[StepShape] = []
        self.counts = torch.zeros(65, dtype=torch.int64)

    def run(self, shape: StepShape) -> None:
        self.calls.append(shape)
        self.counts[shape.num_rows].add_(1)

    def count(self, shape: StepShape) -> int:
        """The number of times that this shape was computed."""
        return int(self.counts[shape.num_rows])


class GraphsSetup:
    """Graphs of a step that only counts."""

    def __init__(self, shapes: list[StepShape] | None = None) -> None:
        self.device, self.step = FakeDevice(), CountingStep()
        self.memory = StepMemory(self.device.torch_device, 4, 5, 64, 4, 32, 16)
        self.graphs = StepGraphs(self.device, self.step, self.memory, SHAPES.all() if shapes is None else shapes)

    def run(self, shape: StepShape, times: int = 1) -> None:
        for _ in range(times):
            self.graphs.run(shape)
        self.device.synchronize()


def test_a_repeated_shape_is_captured_and_then_replayed():
    setup, shape = GraphsSetup(), SHAPES.decode(2, SHORT)
    setup.run(shape, MAX_EAGER_USES)
    assert not setup.device.graphs and setup.step.count(shape) == MAX_EAGER_USES
    setup.run(shape, 5)
    assert setup.step.count(shape) == MAX_EAGER_USES + 5
    assert len(setup.step.calls) == MAX_EAGER_USES + 1  # the last call was the capture, which does not compute
    assert setup.device.graphs[0].num_replays == 5
    assert setup.graphs.num_missing == len(SHAPES.all()) - 1


def test_idle_captures_begin_with_the_largest_shape():
    setup = GraphsSetup()
    wanted = [shape for shape in SHAPES.all() for _ in range(2)]  # warm-up and capture
    while setup.graphs.num_missing:
        setup.graphs.capture_next()
        setup.device.synchronize()
    assert setup.step.calls == wanted and len(setup.device.graphs) == len(SHAPES.all())
    setup.run(SHAPES.decode(3, SHORT))
    assert len(setup.step.calls) == len(wanted)


def test_an_idle_capture_leaves_padding_in_the_inputs():
    setup = GraphsSetup()
    setup.memory.buffer.fill_(5)
    setup.graphs.capture_next()
    setup.device.synchronize()
    inputs = setup.memory.inputs(StepShape(64, 8, False))
    assert (inputs.positions_T == -1).all() and not inputs.sampled_rows_R.any() and (setup.memory.state_SW == 5).all()


def test_a_failed_capture_leaves_only_its_shape_eager(caplog):
    setup, shape = GraphsSetup(), SHAPES.decode(4, SHORT)
    setup.device.capture_errors = [NOT_PERMITTED] * 2
    setup.run(shape, MAX_EAGER_USES + 3)
    assert setup.step.count(shape) == MAX_EAGER_USES + 3 and not setup.device.graphs
    assert "trying once more" in caplog.text and "these steps stay slower" in caplog.text and len(caplog.records) == 2
    assert setup.graphs.counts.num_failures == 2 and setup.graphs.num_missing == setup.graphs.num_shapes - 1
    other = SHAPES.decode(1, SHORT)
    setup.run(other, MAX_EAGER_USES + 1)
    assert len(setup.device.graphs) == 1 and setup.step.count(other) == MAX_EAGER_USES + 1


def test_a_capture_that_fails_once_is_made_again():
    for run in (StepGraphs.capture_next, lambda graphs: [graphs.run(SHAPES.all()[0]) for _ in range(3)]):
        setup = GraphsSetup()
        setup.device.capture_errors = [NOT_PERMITTED]
        run(setup.graphs)
        assert setup.graphs.counts.num_captured == 1 and setup.graphs.counts.num_failures == 1


def test_idle_captures_end_where_all_fail():
    setup = GraphsSetup()
    setup.device.capture_errors = [NOT_PERMITTED] * 99
    while setup.graphs.num_missing:
        setup.graphs.capture_next()
    assert setup.graphs.counts.num_captured == 0 and setup.graphs.counts.num_failures == 2 * len(SHAPES.all())


def test_a_broken_device_is_not_tried_again():
    setup = GraphsSetup()
    setup.device.capture_errors = [torch.AcceleratorError("CUDA error: an illegal memory access was encountered")] * 2
    with pytest.raises(torch.AcceleratorError):
        setup.graphs.capture_next()
    assert setup.graphs.counts.num_failures == 0 and len(setup.device.capture_errors) == 1


def test_steps_too_large_for_a_graph_stay_eager():
    setup, shape = GraphsSetup(), StepShape(8, 8, False)
    setup.run(shape, MAX_EAGER_USES + 5)
    assert not setup.device.graphs and setup.step.count(shape) == MAX_EAGER_USES + 5


def test_without_graphs_every_step_is_called_from_python():
    setup = GraphsSetup([])
    for _ in range(9):
        setup.graphs.run(SHAPES.decode(1, SHORT))
    assert not setup.step.calls
    setup.device.synchronize()
    assert len(setup.step.calls) == 9 and not setup.device.graphs and not setup.graphs.num_missing


def test_a_fake_graph_rejects_work_that_a_capture_does_not_allow():
    """The fake must be as strict as the device, otherwise tests with it prove nothing."""
    device, memory = FakeDevice(), torch.ones(3)
    for work in (lambda: memory + 1, lambda: memory.sum().item(), lambda: torch.zeros(3), lambda: bool(memory[0] > 0)):
        try:
            device.capture(work)
        except RuntimeError as error:
            assert "in a captured step" in str(error)
        else:
            raise AssertionError("the work was captured")
    graph = device.capture(partial(torch.mul, memory, 2, out=memory))
    assert memory.tolist() == [1, 1, 1]
    graph.replay()
    assert memory.tolist() == [2, 2, 2]
