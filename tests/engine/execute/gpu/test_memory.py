"""Changes reach the device's memory whole, in order, and whatever the host does meanwhile."""

import random

import numpy as np
import pytest
import torch

from app.engine.execute.gpu.memory import Staging
from tests.engine.execute.gpu.fake_device import FakeDevice


class Made:
    """A memory of `size` numbers and a way to it."""

    def __init__(self, size: int = 400, capacity: int = 16) -> None:
        self.device = FakeDevice()
        self.memory = torch.zeros(size, dtype=torch.int32)
        self.staging = Staging(self.device, self.memory, capacity)


def run(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_nothing_is_sent_while_nothing_changes():
    made = Made()
    made.staging.flush()
    made.device.run(lambda: made.memory.fill_(7))
    made.device.synchronize()
    assert (made.memory == 7).all() and made.device.num_waits == 1


def test_numbers_and_runs_arrive_when_they_are_flushed():
    made = Made()
    made.staging.write(3, 30)
    made.staging.write_all({5: 50, 6: -60})
    made.staging.write_run(10, run(1, 2, 3))
    made.device.synchronize()
    assert not made.memory.any()
    made.staging.flush()
    made.device.synchronize()
    expected = torch.zeros_like(made.memory)
    expected[3], expected[5], expected[6], expected[10:13] = 30, 50, -60, torch.tensor([1, 2, 3], dtype=torch.int32)
    assert torch.equal(made.memory, expected)


def test_the_last_value_for_a_place_counts():
    made = Made()
    made.staging.write(3, 1)
    made.staging.write(3, 2)
    made.staging.write_run(8, run(1, 1))
    made.staging.write_run(8, run(2))
    made.staging.flush()
    made.device.synchronize()
    assert made.memory[3] == 2 and made.memory[8:10].tolist() == [2, 0]


def test_runs_that_were_not_sent_can_be_dropped_and_single_numbers_stay():
    made = Made()
    made.staging.write(1, 9)
    made.staging.write_run(8, run(1))
    assert made.staging.drop_runs() and not made.staging.drop_runs()
    made.staging.flush()
    made.device.synchronize()
    assert made.memory[1] == 9 and made.memory[8] == 0


def test_more_changes_than_one_copy_holds_arrive_too():
    made = Made(capacity=16)
    made.staging.write_run(0, np.arange(300, dtype=np.int32))
    made.staging.flush()
    made.device.synchronize()
    assert made.memory[:300].tolist() == list(range(300))


def test_changes_of_many_steps_in_flight_do_not_overwrite_each_other():
    """The device is always behind: each buffer is used again long before the work that reads it would be done."""
    made, expected, rng = Made(capacity=16), torch.zeros(400, dtype=torch.int32), random.Random(0)
    for step in range(60):
        for place in rng.sample(range(400), rng.randrange(1, 40)):
            made.staging.write(place, step)
            expected[place] = step
        made.staging.flush()
    made.device.synchronize()
    assert torch.equal(made.memory, expected)


def test_changes_that_could_not_be_sent_are_sent_with_the_next():
    made = Made()
    made.staging.write(3, 30)
    run_work = made.device.run
    made.device.run = lambda work: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        made.staging.flush()
    made.device.run = run_work
    made.staging.write(4, 40)
    made.staging.flush()
    made.device.synchronize()
    assert made.memory[3:5].tolist() == [30, 40]
