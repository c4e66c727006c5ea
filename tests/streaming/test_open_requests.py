"""Whether one more request may come: by what waits, whose it is, and how many streams of its account are paused."""

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

QUIET = EngineStats()


class Opened:
    """Open requests by account, with names that count."""

    def __init__(self, max_queue: int = 8, max_num_seqs: int = 4, max_paused: int = 3) -> None:
        self.requests = OpenRequests(max_queue, max_num_seqs, max_paused)
        self.stats = QUIET

    def fill(self, account: str, count: int = 10_000) -> int:
        """Let so many come, or as many as may; return how many came."""
        for number in range(count):
            try:
                self.requests.check(account, self.stats)
            except Overloaded:
                return number
            request = make_request(f"{account}-{len(self.requests)}", account=account)
            self.requests[request.id] = OpenRequest(request, Mailbox(1))
        return count

    def begin(self, count: int) -> None:
        """The first so many have got a token, and all others wait."""
        for request_id in list(self.requests)[:count]:
            found = self.requests.get(request_id)
            assert found is not None
            found.sink.put(TokenDelta(request_id, 0, 1, (1,), "x"))
        self.stats = EngineStats(num_running=count, num_waiting=len(self.requests) - count)


def test_alone_an_account_may_fill_seats_and_queue():
    opened = Opened()
    assert opened.fill("a") == 12
    with pytest.raises(Overloaded, match="8 requests are waiting"):
        opened.requests.check("a", opened.stats)


def test_a_new_account_is_admitted_to_a_full_queue_and_the_other_may_then_have_half_of_it():
    opened = Opened()
    opened.fill("a")
    opened.begin(4)
    assert opened.fill("b") == 4
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        opened.requests.check("a", opened.stats)
    with pytest.raises(Overloaded, match=r"this account .* half of the queue of 8"):
        opened.requests.check("b", opened.stats)
    assert opened.fill("c") == 2, "a third of it"


def test_while_others_have_requests_an_account_may_have_half_of_the_queue():
    opened = Opened()
    opened.fill("b", 1)
    opened.fill("a", 3)
    opened.begin(4)
    assert opened.fill("a") == 4
    assert opened.fill("b", 2) == 2


def test_a_stream_of_another_account_that_sleeps_takes_none_of_the_queue():
    opened = Opened()
    opened.fill("sleeper", 1)
    (sleeping,) = opened.requests
    opened.requests.get(sleeping).is_paused = True
    assert opened.fill("a") == 12


def test_however_many_accounts_come_what_waits_is_bounded():
    opened = Opened(max_queue=64)
    for number in range(1000):
        opened.fill(f"a{number}")
    assert len(opened.requests) <= 4 + 64 * 5  # the harmonic number of 64 is 4.7


def test_paused_streams_do_not_wait():
    opened = Opened(max_paused=100)
    opened.fill("a", 12)
    for request_id in list(opened.requests):
        found = opened.requests.get(request_id)
        assert found is not None
        found.is_paused = True
    assert opened.fill("a", 4) == 4


def test_an_account_with_many_paused_streams_gets_no_more_and_others_do():
    opened = Opened(max_paused=3)
    opened.fill("a", 4)
    paused = list(opened.requests)[:3]
    for request_id in paused:
        opened.requests.get(request_id).is_paused = True
    with pytest.raises(RateLimitExceeded, match="3 streams of this account are paused"):
        opened.requests.check("a", opened.stats)
    opened.requests.check("b", opened.stats)
    del opened.requests[paused[0]]
    opened.requests.check("a", opened.stats)


def test_what_has_ended_leaves_nothing_behind():
    opened = Opened()
    for number in range(100_000):
        opened.fill(f"10.0.{number >> 8}.{number & 255}", 1)
        del opened.requests[next(iter(opened.requests))]
    assert not opened.requests


async def test_under_pressure_an_account_that_has_nothing_open_is_let_in_where_shares_are_fair():
    for policy in ("fair", "fcfs"):
        port = FakePort(Script(brownout_level=MAX_LEVEL))
        engine = AsyncEngine(port, Config(scheduler=SchedulerConfig(scheduling_policy=policy)))
        engine.start()
        submit(engine, make_request("a", account="flood"))
        port.step()
        await turn_loop()
        for account in ("flood", "other")[: 1 + (policy == "fcfs")]:
            with pytest.raises(Overloaded, match="more work than"):
                submit(engine, make_request("b", account=account))
        if policy == "fair":
            submit(engine, make_request("b", account="other"))
