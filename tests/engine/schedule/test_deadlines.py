"""Deadlines: each is reported once, in time; removed ones take no memory."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.contract.errors import DeadlineExceeded, QueueTimeout
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.deadlines import Deadlines
from tests.cases import examples


def make_request(request_id: str, start: float | None = None, end: float | None = None, arrived: float = 0.0):
    return EngineRequest(request_id, (1,), SamplingParams(), arrived, start_deadline=start, deadline=end)


def kinds(expired) -> dict[str, type]:
    return {request_id: type(error) for request_id, error in expired}


def test_nothing_expires_without_deadlines():
    deadlines = Deadlines()
    deadlines.add(make_request("a"))
    assert deadlines.next_time is None and deadlines.expired(1e9) == []


def test_a_request_that_did_not_start_in_time_is_a_queue_timeout():
    deadlines = Deadlines()
    deadlines.add(make_request("a", start=12.0, end=20.0, arrived=10.0))
    assert deadlines.next_time == 12.0 and deadlines.expired(11.9) == []
    ((request_id, error),) = deadlines.expired(12.5)
    assert request_id == "a" and type(error) is QueueTimeout
    assert "waited 2.5 s" in error.message and "its limit is 2.0 s" in error.message
    assert deadlines.next_time is None and deadlines.expired(99.0) == [], "an expired request is reported once"


def test_a_started_request_has_only_the_deadline_of_its_end():
    deadlines = Deadlines()
    deadlines.add(make_request("a", start=12.0, end=20.0, arrived=10.0))
    deadlines.started("a")
    assert deadlines.next_time == 20.0 and deadlines.expired(19.9) == []
    ((request_id, error),) = deadlines.expired(21.0)
    assert request_id == "a" and type(error) is DeadlineExceeded
    assert "after 11.0 s" in error.message and "10.0 s" in error.message


def test_an_ended_request_is_never_reported():
    deadlines = Deadlines()
    deadlines.add(make_request("a", start=1.0, end=2.0))
    deadlines.remove("a")
    assert deadlines.next_time is None and deadlines.expired(9.0) == []


def test_unknown_requests_are_ignored():
    deadlines = Deadlines()
    deadlines.started("unknown")
    deadlines.remove("unknown")
    deadlines.add(make_request("a", start=1.0))
    deadlines.expired(1.0)
    deadlines.started("a")
    deadlines.remove("a")
    assert deadlines.next_time is None


def test_deadlines_are_reported_in_order_of_time():
    deadlines = Deadlines()
    for request_id, end in (("late", 3.0), ("early", 1.0), ("second", 2.0), ("also early", 1.0)):
        deadlines.add(make_request(request_id, end=end))
    assert [request_id for request_id, _ in deadlines.expired(2.5)] == ["early", "also early", "second"]
    assert deadlines.next_time == 3.0


def test_the_earlier_of_two_deadlines_is_the_reason():
    deadlines = Deadlines()
    deadlines.add(make_request("queue", start=1.0, end=2.0))
    deadlines.add(make_request("end", start=2.0, end=1.0))
    deadlines.add(make_request("both", start=1.0, end=1.0))
    assert kinds(deadlines.expired(5.0)) == {"queue": QueueTimeout, "end": DeadlineExceeded, "both": QueueTimeout}


@given(st.lists(st.booleans(), min_size=400, max_size=1000))
@settings(max_examples=examples(20))
def test_removed_entries_are_bounded(removes):
    """Many requests with far deadlines end early: the number of entries depends on the open requests only."""
    deadlines, open_ids, numbers = Deadlines(), [], count()
    for removes_one in removes:
        if removes_one and open_ids:
            deadlines.remove(open_ids.pop())
        else:
            open_ids.append(f"r{next(numbers)}")
            deadlines.add(make_request(open_ids[-1], start=1e6, end=1e9 - next(numbers)))
            deadlines.started(open_ids[-1])
        assert len(deadlines._heap) <= 64 + 2 * (2 * len(open_ids) + 2)
        assert len(deadlines._open) == len(open_ids)


@given(st.permutations(range(300)))
@settings(max_examples=examples(10))
def test_dropping_removed_entries_keeps_the_order(ends):
    deadlines = Deadlines()
    for end in ends:
        deadlines.add(make_request(f"r{end}", end=float(end)))
    for end in ends:
        if end % 3:
            deadlines.remove(f"r{end}")
    assert len(deadlines._heap) < 200
    assert [error_id for now in range(300) for error_id, _ in deadlines.expired(now)] == [
        f"r{end}" for end in range(0, 300, 3)
    ]


class DeadlinesMachine(RuleBasedStateMachine):
    """Compares `Deadlines` with a dict of the open requests."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.open: dict[str, list[float | None]] = {}  # [start deadline or None once started, deadline]
        self.now = 0.0
        self.numbers = count()

    @rule(start=st.none() | st.integers(0, 20), end=st.none() | st.integers(0, 40))
    def add(self, start, end):
        request_id = f"r{next(self.numbers)}"
        times = [None if time is None else self.now + time for time in (start, end)]
        self.deadlines.add(make_request(request_id, *times, arrived=self.now))
        self.open[request_id] = times

    @rule(data=st.data())
    def start(self, data):
        if self.open:
            request_id = data.draw(st.sampled_from(sorted(self.open)))
            self.deadlines.started(request_id)
            self.open[request_id][0] = None

    @rule(data=st.data())
    def remove(self, data):
        if self.open:
            request_id = data.draw(st.sampled_from(sorted(self.open)))
            self.deadlines.remove(request_id)
            del self.open[request_id]

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds):
        self.now += seconds
        due = {
            request_id: QueueTimeout if start is not None and (end is None or start <= end) else DeadlineExceeded
            for request_id, (start, end) in self.open.items()
            if any(time is not None and time <= self.now for time in (start, end))
        }
        expired = self.deadlines.expired(self.now)
        assert kinds(expired) == due and len(expired) == len(due)
        for request_id in due:
            del self.open[request_id]

    @invariant()
    def next_time_is_the_earliest(self):
        times = [time for pair in self.open.values() for time in pair if time is not None]
        assert self.deadlines.next_time == min(times, default=None)


DeadlinesMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestDeadlinesMachine = DeadlinesMachine.TestCase
