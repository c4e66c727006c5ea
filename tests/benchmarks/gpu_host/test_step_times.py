"""The times of steps: the table, and between its rows."""

import pytest

from app.engine.execute.gpu.shapes import StepShape
from app.engine.schedule.step_plan import Chunk, Chunks, StepPlan
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu_host.step_times import STEP_TIMES, StepTimes

TIMES = StepTimes({1: 1.0, 11: 2.0}, 5.0)


@pytest.mark.parametrize(("rows", "milliseconds"), [(1, 1.0), (6, 1.5), (11, 2.0), (500, 2.0)])
def test_a_decode_step_takes_the_time_of_its_rows(rows, milliseconds):
    assert TIMES.seconds(StepShape(rows, rows, True), None) == pytest.approx(milliseconds / 1000)


def test_a_mixed_step_takes_that_of_its_decodes_and_of_all_rows():
    chunks = Chunks.of([Chunk(1, 1, 9, (3,)), Chunk(2, 2, 0, (3,) * 50), *(Chunk(i, i, 9, (3,)) for i in range(3, 8))])
    plan = StepPlan(0, chunks, (), ())
    assert TIMES.seconds(StepShape(64, 64, False), plan) == pytest.approx(1.5e-3 + 64 * 5e-6)


def test_the_models_are_known_and_longer_batches_take_longer():
    assert set(STEP_TIMES) <= set(SHAPES)
    for times in STEP_TIMES.values():
        assert sorted(times.decode_ms) == list(times.decode_ms)
        assert sorted(times.decode_ms.values()) == list(times.decode_ms.values())
