"""When graphs are captured, and that a step without one is computed all the same."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from app.engine.execute.gpu.graphs import MAX_EAGER_USES, StepGraphs
from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.shapes import StepShape, StepShapes
from tests.engine.execute.gpu.fake_device import FakeDevice

SHAPES = StepShapes(4, 64, 4)
NOT_PERMITTED = RuntimeError("operation not permitted when stream is capturing")


class Noted:
    """A step that counts in a tensor how often each shape was computed, and notes the calls from Python."""

    def __init__(self) -> None:
        self.calls: list[StepShape] = []
        self.counts = torch.zeros(65, dtype=torch.int64)

    def run(self, shape: StepShape) -> None:
        """See DeviceStep.run."""
        self.calls.append(shape)
        self.counts[shape.num_rows].add_(1)

    def count(self, shape: StepShape) -> int:
        """How often this shape was computed."""
        return int(self.counts[shape.num_rows])


class Made:
    """Graphs over a step that only counts."""

    def __init__(self, shapes: list[StepShape] | None = None) -> None:
        self.device, self.step = FakeDevice(), Noted()
        self.memory = StepMemory(self.device.torch_device, 4, 5, 64, 4, 16)
        self.graphs = StepGraphs(self.device, self.step, self.memory, SHAPES.all() if shapes is None else shapes)

    def run(self, shape: StepShape, times: int = 1) -> None:
        for _ in range(times):
            self.graphs.run(shape)
        self.device.synchronize()


def test_a_shape_is_captured_when_it_comes_again_and_replayed_from_then_on():
    made, shape = Made(), SHAPES.decode(2)
    made.run(shape, MAX_EAGER_USES)
    assert not made.device.graphs and made.step.count(shape) == MAX_EAGER_USES
    made.run(shape, 5)
    assert made.step.count(shape) == MAX_EAGER_USES + 5
    assert len(made.step.calls) == MAX_EAGER_USES + 1  # the last call was the capture, which computes nothing
    assert made.device.graphs[0].num_replays == 5
    assert made.graphs.num_missing == len(SHAPES.all()) - 1


def test_idle_captures_begin_with_the_largest_and_end():
    made = Made()
    wanted = [shape for shape in SHAPES.all() for _ in range(2)]  # once to warm it, once to capture it
    while made.graphs.num_missing:
        made.graphs.capture_next()
        made.device.synchronize()
    assert made.step.calls == wanted and len(made.device.graphs) == len(SHAPES.all())
    made.run(SHAPES.decode(3))
    assert len(made.step.calls) == len(wanted)


def test_an_idle_capture_leaves_padding_in_the_inputs():
    made = Made()
    made.memory.buffer.fill_(5)
    made.graphs.capture_next()
    made.device.synchronize()
    inputs = made.memory.inputs(StepShape(64, 8, False))
    assert (inputs.positions_T == -1).all() and not inputs.sampled_rows_R.any() and (made.memory.state_SW == 5).all()


def test_a_capture_that_fails_leaves_the_shape_eager_and_the_others_alone(caplog):
    made, shape = Made(), SHAPES.decode(4)
    made.device.capture_errors = [NOT_PERMITTED] * 2
    made.run(shape, MAX_EAGER_USES + 3)
    assert made.step.count(shape) == MAX_EAGER_USES + 3 and not made.device.graphs
    assert "trying once more" in caplog.text and "these steps stay slower" in caplog.text and len(caplog.records) == 2
    assert made.graphs.num_failures == 2 and made.graphs.num_missing == made.graphs.num_shapes - 1
    other = SHAPES.decode(1)
    made.run(other, MAX_EAGER_USES + 1)
    assert len(made.device.graphs) == 1 and made.step.count(other) == MAX_EAGER_USES + 1


def test_a_capture_that_fails_once_is_made_again():
    for run in (StepGraphs.capture_next, lambda graphs: [graphs.run(SHAPES.all()[0]) for _ in range(3)]):
        made = Made()
        made.device.capture_errors = [NOT_PERMITTED]
        run(made.graphs)
        assert made.graphs.num_graphs == 1 and made.graphs.num_failures == 1


def test_idle_captures_end_where_all_fail():
    made = Made()
    made.device.capture_errors = [NOT_PERMITTED] * 99
    while made.graphs.num_missing:
        made.graphs.capture_next()
    assert made.graphs.num_graphs == 0 and made.graphs.num_failures == 2 * len(SHAPES.all())


def test_a_broken_device_is_not_tried_again():
    made = Made()
    made.device.capture_errors = [torch.AcceleratorError("CUDA error: an illegal memory access was encountered")] * 2
    with pytest.raises(torch.AcceleratorError):
        made.graphs.capture_next()
    assert made.graphs.num_failures == 0 and len(made.device.capture_errors) == 1


def test_steps_that_are_too_large_for_a_graph_stay_eager():
    made, shape = Made(), StepShape(8, 8, False)
    made.run(shape, MAX_EAGER_USES + 5)
    assert not made.device.graphs and made.step.count(shape) == MAX_EAGER_USES + 5


def test_without_graphs_every_step_is_called_from_python():
    made = Made([])
    for _ in range(9):
        made.graphs.run(SHAPES.decode(1))
    assert not made.step.calls
    made.device.synchronize()
    assert len(made.step.calls) == 9 and not made.device.graphs and not made.graphs.num_missing


def test_a_fake_graph_refuses_what_a_capture_could_not_do():
    """The fake has to be as strict as the device, or all that is tested with it proves nothing."""
    device, memory = FakeDevice(), torch.ones(3)
    for work in (lambda: memory + 1, lambda: memory.sum().item(), lambda: torch.zeros(3), lambda: bool(memory[0] > 0)):
        try:
            device.capture(work)
        except RuntimeError as error:
            assert "in a captured step" in str(error)
        else:
            raise AssertionError("it was captured")
    graph = device.capture(partial(torch.mul, memory, 2, out=memory))
    assert memory.tolist() == [1, 1, 1]
    graph.replay()
    assert memory.tolist() == [2, 2, 2]
