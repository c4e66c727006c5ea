"""Changes reach the device's memory completely and in order, whatever the host writes meanwhile."""

import random

import numpy as np
import pytest
import torch

from app.engine.execute.gpu.memory import Staging
from tests.engine.execute.gpu.fake_device import FakeDevice


class StagingSetup:
    """A memory of `size` numbers and its staging."""

    def __init__(self, size: int = 400, capacity: int = 16) -> None:
        self.device = FakeDevice()
        self.memory = torch.zeros(size, dtype=torch.int32)
        self.staging = Staging(self.device, self.memory, capacity)


def run(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_flush_without_changes_sends_nothing():
    setup = StagingSetup()
    setup.staging.flush()
    setup.device.run(lambda: setup.memory.fill_(7))
    setup.device.synchronize()
    assert (setup.memory == 7).all() and setup.device.num_waits == 1


def test_numbers_and_runs_are_written_when_flushed():
    setup = StagingSetup()
    setup.staging.write(3, 30)
    setup.staging.write_all({5: 50, 6: -60})
    setup.staging.write_run(10, run(1, 2, 3))
    setup.device.synchronize()
    assert not setup.memory.any()
    setup.staging.flush()
    setup.device.synchronize()
    expected = torch.zeros_like(setup.memory)
    expected[3], expected[5], expected[6], expected[10:13] = 30, 50, -60, torch.tensor([1, 2, 3], dtype=torch.int32)
    assert torch.equal(setup.memory, expected)


def test_the_last_value_of_an_index_counts():
    setup = StagingSetup()
    setup.staging.write(3, 1)
    setup.staging.write(3, 2)
    setup.staging.write_run(8, run(1, 1))
    setup.staging.write_run(8, run(2))
    setup.staging.flush()
    setup.device.synchronize()
    assert setup.memory[3] == 2 and setup.memory[8:10].tolist() == [2, 0]


def test_unsent_runs_can_be_dropped_without_single_numbers():
    setup = StagingSetup()
    setup.staging.write(1, 9)
    setup.staging.write_run(8, run(1))
    assert setup.staging.drop_runs() and not setup.staging.drop_runs()
    setup.staging.flush()
    setup.device.synchronize()
    assert setup.memory[1] == 9 and setup.memory[8] == 0


def test_more_changes_than_the_capacity_are_written():
    setup = StagingSetup(capacity=16)
    setup.staging.write_run(0, np.arange(300, dtype=np.int32))
    setup.staging.flush()
    setup.device.synchronize()
    assert setup.memory[:300].tolist() == list(range(300))


def test_changes_of_many_steps_in_flight_do_not_overwrite_each_other():
    """The device is always late: each buffer is reused before the work that reads it is done."""
    setup, expected, rng = StagingSetup(capacity=16), torch.zeros(400, dtype=torch.int32), random.Random(0)
    for step in range(60):
        for index in rng.sample(range(400), rng.randrange(1, 40)):
            setup.staging.write(index, step)
            expected[index] = step
        setup.staging.flush()
    setup.device.synchronize()
    assert torch.equal(setup.memory, expected)


def test_changes_that_could_not_be_sent_are_sent_with_the_next_ones():
    setup = StagingSetup()
    setup.staging.write(3, 30)
    run_work = setup.device.run
    setup.device.run = lambda work: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        setup.staging.flush()
    setup.device.run = run_work
    setup.staging.write(4, 40)
    setup.staging.flush()
    setup.device.synchronize()
    assert setup.memory[3:5].tolist() == [30, 40]
