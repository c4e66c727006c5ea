"""Admission of a request by the length of the queue, its account's share, and its account's paused streams."""

import pytest

from app.config.settings import Config, SchedulerConfig
from app.contract.brownout_effects import MAX_LEVEL
from app.contract.engine_counts import QueueCounts
from app.contract.engine_status import EngineStats
from app.contract.errors import Overloaded, RateLimitExceeded
from app.contract.events import TokenDelta
from app.streaming.async_engine import AsyncEngine
from app.streaming.flow.mailbox import Mailbox
from app.streaming.open_requests import BROWNOUT, PAUSED, QUEUE_FULL, OpenRequest, OpenRequests
from tests.fakes import FakePort, Script, make_request, submit, turn_loop

IDLE_STATS = EngineStats()


class FilledRequests:
    """Open requests of several accounts, with numbered ids."""

    def __init__(self, max_queue: int = 8, max_num_seqs: int = 4, max_paused: int = 3) -> None:
        self.requests = OpenRequests(max_queue, max_num_seqs, max_paused)
        self.stats = IDLE_STATS

    def fill(self, account: str, count: int = 10_000) -> int:
        """Add requests until `count` or the first rejection; return the number of added ones."""
        for number in range(count):
            try:
                self.add(account)
            except Overloaded:
                return number
        return count

    def check(self, account: str, num_requests: int = 1) -> None:
        """Check a body of `num_requests`."""
        self.requests.check(account, [make_request(account=account)] * (num_requests - 1), self.stats)

    def add(self, account: str, num_requests: int = 1) -> None:
        """Add a body of `num_requests`, if it is admitted."""
        self.check(account, num_requests)
        for _ in range(num_requests):
            request = make_request(f"{account}-{len(self.requests)}", account=account)
            self.requests[request.id] = OpenRequest(request, Mailbox(1))

    def begin(self, count: int) -> None:
        """Give the first `count` requests a token; all others wait."""
        for request_id in list(self.requests)[:count]:
            found = self.requests.get(request_id)
            assert found is not None
            found.sink.put(TokenDelta(request_id, 0, 1, (1,), "x"))
        self.stats = EngineStats(queues=QueueCounts(count, len(self.requests) - count))


def test_one_account_can_fill_seats_and_queue():
    filled = FilledRequests()
    assert filled.fill("a") == 12
    with pytest.raises(Overloaded, match="8 requests are waiting"):
        filled.check("a")


def test_a_second_account_is_admitted_to_a_full_queue_and_then_each_has_half():
    filled = FilledRequests()
    filled.fill("a")
    filled.begin(4)
    assert filled.fill("b") == 4
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        filled.check("a")
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        filled.check("b")
    assert filled.fill("c") == 2, "a third of the queue"


def test_of_two_accounts_each_may_have_half_of_the_queue():
    filled = FilledRequests()
    filled.fill("b", 1)
    filled.fill("a", 3)
    filled.begin(4)
    assert filled.fill("a") == 4
    assert filled.fill("b", 2) == 2


def test_a_paused_stream_of_another_account_takes_no_share_of_the_queue():
    filled = FilledRequests()
    filled.fill("other", 1)
    (paused,) = filled.requests
    filled.requests.get(paused).is_paused = True
    assert filled.fill("a") == 12


def test_waiting_requests_of_any_number_of_accounts_are_bounded():
    filled = FilledRequests(max_queue=64)
    for number in range(1000):
        filled.fill(f"a{number}")
    assert len(filled.requests) <= 4 + 64 * 5  # the harmonic number of 64 is 4.7


def test_a_body_needs_room_for_all_its_requests():
    filled = FilledRequests()
    filled.add("a", 8)
    with pytest.raises(Overloaded, match="no room for 5 more requests; at most 8 may wait"):
        filled.check("a", 5)
    filled.add("a", 4)
    with pytest.raises(Overloaded, match="queue is full: 8 requests are waiting"):
        filled.check("a")


def test_a_body_that_is_larger_than_the_queue_is_admitted_for_an_account_without_waiting_requests():
    filled = FilledRequests()
    filled.add("a", 100)
    with pytest.raises(Overloaded):
        filled.check("a")
    filled = FilledRequests()
    filled.add("other")
    filled.add("a", 100)  # more than the half of the queue that it may have
    with pytest.raises(Overloaded, match="half of the queue"):
        filled.check("a")


def test_requests_of_a_rejected_body_are_counted_in_the_message():
    filled = FilledRequests(max_queue=256)
    filled.fill("other", 5)
    filled.begin(5)
    filled.add("a")
    with pytest.raises(Overloaded, match=r"^1 requests .* waiting, and 256 more came in one body; .* half .* of 256"):
        filled.check("a", 256)


def test_bodies_leave_others_their_share_and_the_queue_exceeds_its_limit_by_one_body():
    filled = FilledRequests(max_queue=64)
    filled.add("a", 100)
    for number in range(1000):
        with pytest.raises(Overloaded):
            filled.check(f"b{number}", 100)
        filled.fill(f"b{number}")
    assert filled.requests["b0-100"], "others have their share of a queue that one body fills"
    assert len(filled.requests) <= 4 + 100 + 64 * 5


def test_paused_streams_do_not_count_as_waiting():
    filled = FilledRequests(max_paused=100)
    filled.fill("a", 12)
    for request_id in list(filled.requests):
        found = filled.requests.get(request_id)
        assert found is not None
        found.is_paused = True
    assert filled.fill("a", 4) == 4


def test_an_account_with_too_many_paused_streams_is_rejected():
    filled = FilledRequests(max_paused=3)
    filled.fill("a", 4)
    paused = list(filled.requests)[:3]
    for request_id in paused:
        filled.requests.get(request_id).is_paused = True
    with pytest.raises(RateLimitExceeded, match="3 streams of this account are paused"):
        filled.check("a")
    filled.check("b")
    del filled.requests[paused[0]]
    filled.check("a")


def test_ended_requests_leave_no_state():
    filled = FilledRequests()
    for number in range(100_000):
        filled.fill(f"10.0.{number >> 8}.{number & 255}", 1)
        del filled.requests[next(iter(filled.requests))]
    assert not filled.requests


async def test_under_overload_the_fair_policy_admits_accounts_without_open_requests():
    for policy in ("fair", "fcfs"):
        port = FakePort(Script(brownout_level=MAX_LEVEL))
        engine = AsyncEngine(port, Config(scheduler=SchedulerConfig(scheduling_policy=policy)))
        engine.start()
        submit(engine, make_request("a", account="flood"))
        port.step()
        await turn_loop()
        for account in ("flood", "other")[: 1 + (policy == "fcfs")]:
            with pytest.raises(Overloaded, match="is overloaded"):
                submit(engine, make_request("b", account=account))
        if policy == "fair":
            submit(engine, make_request("b", account="other"))


async def test_under_overload_the_fair_policy_admits_accounts_that_others_keep_waiting():
    """The flood holds the seats and the queue; the other account has an answer, and none of its requests waits."""
    port = FakePort(Script(brownout_level=MAX_LEVEL))
    engine = AsyncEngine(port, Config(scheduler=SchedulerConfig(max_num_seqs=2)))
    engine.start()
    for name, account in (("a", "other"), ("b", "flood")):
        submit(engine, make_request(name, account=account))
    port.step()
    await turn_loop()
    for name in ("c", "d"):
        engine._open[name] = OpenRequest(make_request(name, account="flood"), Mailbox(1))  # they came before
    assert [engine.brownout_level(account) for account in ("flood", "other", "new")] == [MAX_LEVEL, 0, 0]
    with pytest.raises(Overloaded, match="is overloaded"):
        submit(engine, make_request("e", account="flood"))
    submit(engine, make_request("e", account="other"))
    submit(engine, make_request("f", account="new"))


def test_an_account_has_its_share_of_those_that_wait():
    filled = FilledRequests(max_queue=100, max_num_seqs=8)
    assert not filled.requests.has_share("a")
    for account, count in (("a", 2), ("b", 2)):
        filled.add(account, count)
    filled.begin(4)
    assert filled.requests.has_share("a")  # nobody waits, so anybody may be the cause
    assert filled.requests.has_share("b")
    filled.add("a", 5)
    filled.add("b", 2)
    filled.add("c")
    assert [account for account in "abcd" if filled.requests.has_share(account)] == ["a"]
    filled.add("b")
    assert [account for account in "abcd" if filled.requests.has_share(account)] == ["a", "b"]
    for one in filled.requests.values():
        one.is_paused = one.request.account == "a"
    assert [account for account in "abcd" if filled.requests.has_share(account)] == ["b"]


def test_a_rejected_body_counts_once_under_the_limit_that_rejected_it():
    filled = FilledRequests()
    filled.add("a", 12)
    with pytest.raises(Overloaded):
        filled.check("a", 5)
    assert filled.requests.counts.rejections == {QUEUE_FULL: 1, PAUSED: 0, BROWNOUT: 0}
