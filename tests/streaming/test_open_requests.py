"""Admission of a request by the length of the queue, its account's share, and its account's paused streams."""

import pytest

from app.config.settings import Config, SchedulerConfig
from app.contract.engine_status import EngineStats
from app.contract.errors import Overloaded, RateLimitExceeded
from app.contract.events import TokenDelta
from app.contract.overload_levels import MAX_LEVEL
from app.streaming.bridge import AsyncEngine
from app.streaming.flow.mailbox import Mailbox
from app.streaming.open_requests import OpenRequest, OpenRequests
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
                self.requests.check(account, self.stats)
            except Overloaded:
                return number
            request = make_request(f"{account}-{len(self.requests)}", account=account)
            self.requests[request.id] = OpenRequest(request, Mailbox(1))
        return count

    def begin(self, count: int) -> None:
        """Give the first `count` requests a token; all others wait."""
        for request_id in list(self.requests)[:count]:
            found = self.requests.get(request_id)
            assert found is not None
            found.sink.put(TokenDelta(request_id, 0, 1, (1,), "x"))
        self.stats = EngineStats(num_running=count, num_waiting=len(self.requests) - count)


def test_one_account_can_fill_seats_and_queue():
    filled = FilledRequests()
    assert filled.fill("a") == 12
    with pytest.raises(Overloaded, match="8 requests are waiting"):
        filled.requests.check("a", filled.stats)


def test_a_second_account_is_admitted_to_a_full_queue_and_then_each_has_half():
    filled = FilledRequests()
    filled.fill("a")
    filled.begin(4)
    assert filled.fill("b") == 4
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        filled.requests.check("a", filled.stats)
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        filled.requests.check("b", filled.stats)
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
        filled.requests.check("a", filled.stats)
    filled.requests.check("b", filled.stats)
    del filled.requests[paused[0]]
    filled.requests.check("a", filled.stats)


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
