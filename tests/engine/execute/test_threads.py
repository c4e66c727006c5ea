"""The number of compute threads: measured, kept while it pays, changed when it does not, and not by one slow step."""

import pytest

from app.engine.execute.threads import PROBE_INTERVAL_STEPS, ThreadChoice


class Machine:
    """Work takes `seconds[threads]`, and its clock runs on by that."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.threads = 0
        self.choice = ThreadChoice(max(seconds), set_threads=self.use, probe=self.work, clock=lambda: self.now)

    def use(self, threads: int) -> None:
        self.threads = threads

    def work(self, times: float = 1.0) -> None:
        self.now += self.seconds[self.threads] * times

    def steps(self, count: int, times: float = 1.0, num_tokens: int = 8) -> list[int]:
        """Take steps that are `times` as slow as they should be; return the threads of each."""
        used = []
        for _ in range(count):
            with self.choice.measured(num_tokens):
                used.append(self.threads)
                self.work(times)
        return used


@pytest.mark.parametrize(
    ("seconds", "best"), [({1: 2.0, 2: 1.0}, 2), ({1: 1.0, 2: 20.0}, 1), ({1: 1.0, 2: 1.0}, 2), ({1: 3, 4: 1, 8: 2}, 4)]
)
def test_the_start_finds_the_fastest_and_of_equals_the_larger(seconds: dict[int, float], best: int):
    machine = Machine(seconds)
    assert machine.choice.candidates == sorted(seconds, reverse=True)
    assert machine.choice.best == best
    assert machine.steps(3) == [best] * 3


def test_others_are_tried_again_the_seldomer_the_slower_they_were():
    used = Machine({1: 2.0, 2: 1.0}).steps(10 * PROBE_INTERVAL_STEPS)
    assert 4 <= used.count(1) <= 6


def test_a_large_step_leaves_the_look_to_a_small_one():
    machine = Machine({1: 2.0, 2: 1.0})
    assert machine.steps(4 * PROBE_INTERVAL_STEPS, num_tokens=512).count(1) == 0
    assert machine.steps(2) == [1, 2]


def test_large_steps_alone_look_in_the_end():
    used = Machine({1: 2.0, 2: 1.0}).steps(20 * PROBE_INTERVAL_STEPS, num_tokens=512)
    assert used.count(1) == 1


def test_one_slow_step_changes_nothing():
    machine = Machine({1: 1.9, 2: 1.0})
    machine.steps(2 * PROBE_INTERVAL_STEPS)
    assert machine.steps(1, times=1000.0) == [2]
    assert machine.steps(20) == [2] * 20


def test_a_machine_that_becomes_busy_is_noticed_within_steps_and_a_quiet_one_again():
    machine = Machine({1: 1.9, 2: 1.0})
    machine.steps(2 * PROBE_INTERVAL_STEPS)
    machine.seconds[2] = 20.0
    assert machine.steps(6)[-1] == 1
    machine.seconds[2] = 1.0
    assert machine.steps(20 * PROBE_INTERVAL_STEPS)[-1] == 2


def test_a_step_that_raises_is_not_learnt_from():
    machine = Machine({1: 1.9, 2: 1.0})
    with pytest.raises(RuntimeError), machine.choice.measured(8):
        machine.now += 1000.0
        raise RuntimeError
    assert machine.steps(3) == [2] * 3
