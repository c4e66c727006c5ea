"""The number of compute threads: all, until fewer are faster for equal steps; trials are scheduled by time."""

import pytest

from app.engine.execute.cpu.thread_choice import MAX_WAIT_S, MIN_WAIT_S, NUM_COMPARED, ThreadChoice


class Machine:
    """A fake machine on which a step takes `seconds[threads]` of its clock."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.threads = 0
        self.choice = ThreadChoice(max(seconds), set_threads=self.use, clock=lambda: self.now)

    def use(self, threads: int) -> None:
        self.threads = threads

    def steps(self, count: int, times: float = 1.0, num_tokens: int = 8) -> list[int]:
        """Run steps that are `times` as slow as normal; return the number of threads of each."""
        used = []
        for _ in range(count):
            with self.choice.measured(num_tokens):
                used.append(self.threads)
                self.now += self.seconds[self.threads] * times
        return used

    def steps_for(self, seconds: float, num_tokens: int = 8) -> list[int]:
        """Run steps for `seconds`; return the number of threads of each."""
        end, used = self.now + seconds, []
        while self.now < end:
            used += self.steps(1, num_tokens=num_tokens)
        return used


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 0.02, 2: 0.01}, 2), ({1: 0.01, 2: 0.2}, 1), ({1: 0.01, 2: 0.01}, 2), ({1: 0.03, 4: 0.01, 8: 0.02}, 4)],
)
def test_the_fastest_number_is_found_the_larger_one_of_equals(seconds: dict[int, float], best: int):
    machine = Machine(seconds)
    assert machine.choice.candidates == sorted(seconds, reverse=True)
    machine.steps_for(4 * MIN_WAIT_S)
    assert machine.choice.best == best


def test_other_load_during_loading_has_no_later_effect():
    machine = Machine({1: 0.01, 2: 12.0})
    machine.now += 30.0  # of loading
    machine.seconds[2] = 0.005  # the other load has ended
    used = machine.steps_for(20.0)
    assert used[0] == 2 and used.count(2) >= len(used) - 5


@pytest.mark.parametrize("step_s", [0.0001, 0.01, 0.4])
def test_a_machine_that_becomes_idle_is_detected_within_a_time_limit(step_s: float):
    machine = Machine({1: step_s, 2: 12 * step_s})
    machine.steps_for(60.0)
    assert machine.choice.best == 1
    machine.seconds[2] = step_s / 2
    machine.steps_for(MAX_WAIT_S + 2 * step_s)
    assert machine.choice.best == 2


def test_the_time_between_trials_doubles_from_half_a_second():
    machine = Machine({1: 0.0002, 2: 0.0001})
    trials = []
    while machine.now < 60.0:
        started = machine.now
        if machine.steps(1) == [1]:
            trials.append(started)
    waits = [after - before for before, after in zip([0.0, *trials], trials, strict=False)]
    assert waits == pytest.approx([0.5, 1, 2, 4, 8, 10, 10, 10, 10], abs=0.001)


def test_trials_take_at_most_a_fiftieth_of_the_time():
    used = Machine({1: 4.0, 8: 1.0, 16: 0.5}).steps_for(2000.0)
    assert 1 < used.count(1) * 4.0 + used.count(8) * 1.0 <= 2 * 0.02 * 2000.0 + 5.0


def test_a_trial_waits_for_steps_of_its_size():
    machine = Machine({1: 0.02, 2: 0.01})
    machine.steps_for(MIN_WAIT_S)
    for num_tokens in range(100, 150):
        assert machine.steps(NUM_COMPARED, num_tokens=num_tokens) == [2] * NUM_COMPARED
    assert machine.steps(NUM_COMPARED + 2, num_tokens=8) == [2] * NUM_COMPARED + [1, 2]


def test_different_steps_do_not_change_the_number_of_threads():
    """Decodes, with prompts that take ten times as long in between."""
    machine, used = Machine({1: 0.019, 2: 0.01}), []
    for _ in range(300):
        used += machine.steps(2, times=10.0, num_tokens=63) + machine.steps(NUM_COMPARED + 2, num_tokens=33)
        assert machine.choice.best == 2
    assert 3 <= used.count(1) <= 20


def test_a_few_slow_steps_change_nothing():
    machine = Machine({1: 0.019, 2: 0.01})
    machine.steps_for(MIN_WAIT_S - 0.2)
    machine.steps(NUM_COMPARED - 1, times=7.0)  # now a trial is due
    assert machine.steps(2) == [1, 2]
    assert machine.choice.best == 2


def test_a_machine_that_becomes_busy_is_detected_within_a_time_limit():
    machine = Machine({1: 0.019, 2: 0.01})
    machine.steps_for(60.0)
    machine.seconds[2] = 0.2
    machine.steps_for(MAX_WAIT_S + 0.5)
    assert machine.choice.best == 1


def test_a_step_that_raises_is_not_measured():
    machine = Machine({1: 0.019, 2: 0.01})
    machine.steps_for(0.4)
    with pytest.raises(RuntimeError), machine.choice.measured(8):
        machine.now += 1000.0
        raise RuntimeError
    assert machine.steps(2) == [1, 2]  # the trial that is due
    assert machine.choice.best == 2
