"""Policies: the order of requests, and for how long a request can be overtaken."""

import heapq
import random
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.settings import settings
from app.contract.errors import ConfigurationError
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.policy import (
    AGEING_S,
    MAX_IDLE,
    SHORTER_S,
    FairShare,
    Policy,
    PriorityWithAgeing,
    ShortestJobFirst,
    make_policy,
)

NUMBERS = count()


def make_request(
    arrival_time: float = 0.0,
    *,
    priority: int = 0,
    tenant: str | None = None,
    account: str = "",
    num_prompt: int = 4,
    max_tokens: int = 1000,
    n: int = 1,
) -> EngineRequest:
    return EngineRequest(
        f"r{next(NUMBERS)}", (1,) * num_prompt, SamplingParams(max_tokens=max_tokens, n=n), arrival_time,
        priority=priority, tenant=tenant, account=account,
    )  # fmt: skip


def test_there_is_a_policy_for_each_setting():
    choices = next(item.choices for item in settings() if item.name == "scheduling_policy")
    policies = [make_policy(name) for name in choices]
    assert [type(policy) for policy in policies] == [Policy, PriorityWithAgeing, ShortestJobFirst, FairShare]
    assert make_policy("fair") is not make_policy("fair"), "schedulers share no policy"


def test_an_unknown_policy_is_rejected_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match=r"'prority'; it must be one of .*did you mean 'priority'"):
        make_policy("prority")


def test_fcfs_orders_by_arrival_only():
    policy = Policy()
    early, late = make_request(1.0, priority=9), make_request(2.0, priority=-9)
    assert policy.key(early) < policy.key(late)


# --- Priority ---------------------------------------------------------------------------------------------------

ARRIVALS = st.integers(0, 10_000).map(lambda tenths: tenths / 8)


@given(first=st.tuples(ARRIVALS, st.integers(-5, 5)), second=st.tuples(ARRIVALS, st.integers(-5, 5)), now=ARRIVALS)
def test_the_static_key_gives_the_order_of_linear_ageing_at_any_time(first, second, now):
    def aged(arrival_time: float, priority: int) -> float:
        return priority * AGEING_S - (now - arrival_time)

    policy = PriorityWithAgeing()
    keys = [policy.key(make_request(arrival, priority=priority)) for arrival, priority in (first, second)]
    assert (keys[0] < keys[1]) == (aged(*first) < aged(*second))


def test_a_higher_priority_overtakes_for_a_limited_time():
    policy = PriorityWithAgeing()
    waiting = policy.key(make_request(0.0, priority=2))
    assert policy.key(make_request(2 * AGEING_S - 0.1, priority=0)) < waiting
    assert policy.key(make_request(2 * AGEING_S + 0.1, priority=0)) > waiting


# --- Shortest job first -----------------------------------------------------------------------------------------


def teach(policy: Policy, name: str, num_output_tokens: int, n: int = 1) -> None:
    for _ in range(100):
        request = make_request(tenant=name, account=name, n=n)
        policy.key(request)
        policy.finished(request, num_output_tokens)


def test_a_request_with_a_shorter_predicted_output_comes_first():
    policy = ShortestJobFirst()
    teach(policy, "brief", 10)
    teach(policy, "long", 800)
    assert policy.key(make_request(1.0, tenant="brief")) < policy.key(make_request(0.0, tenant="long"))


def test_a_long_request_is_overtaken_for_a_limited_time():
    policy = ShortestJobFirst()
    key = policy.key(make_request(0.0, max_tokens=1000))
    assert policy.key(make_request(1000 * SHORTER_S, max_tokens=1)) > key, "even if it was the longest possible"


def test_all_sequences_of_a_request_count_as_one_job():
    policy = ShortestJobFirst()
    teach(policy, "four", 400, n=4)
    assert policy.predictor.predict(make_request(tenant="four")) == pytest.approx(100, rel=0.1)
    one, four = (policy.key(make_request(tenant="four", n=n))[0] for n in (1, 4))
    assert four == pytest.approx(4 * one)


def test_requests_without_output_do_not_train_the_predictor():
    policy = ShortestJobFirst()
    before = policy.key(make_request())
    teach(policy, "aborted", 0)
    assert policy.key(make_request(tenant="aborted")) == before


# --- Fair share -------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """Generates one token per tick for each of `num_slots` requests; the policy chooses the next one to start."""

    policy: Policy
    num_slots: int = 4
    queue: list = field(default_factory=list)
    running: list = field(default_factory=list)
    served: dict = field(default_factory=dict)
    longest_wait: dict = field(default_factory=dict)
    now: int = 0

    @classmethod
    def trained(cls, **lengths: int) -> "Server":
        """A server whose policy has learned the output lengths of these accounts."""
        server = cls(FairShare())
        for account, num_output in lengths.items():
            teach(server.policy, account, num_output)
        return server

    def send(self, account: str, num_output: int, num_requests: int = 1) -> None:
        for _ in range(num_requests):
            request = make_request(float(self.now), tenant=account, account=account)
            heapq.heappush(self.queue, (self.policy.key(request), next(NUMBERS), request, num_output))

    def tick(self) -> None:
        while self.queue and len(self.running) < self.num_slots:
            *_, request, num_output = heapq.heappop(self.queue)
            self.running.append([request, num_output, num_output])
            waited = self.now - request.arrival_time
            self.longest_wait[request.account] = max(waited, self.longest_wait.get(request.account, 0.0))
        for job in self.running:
            job[1] -= 1
            self.served[job[0].account] = self.served.get(job[0].account, 0) + 1
        for request, left, num_output in self.running:
            if left == 0:
                self.policy.finished(request, num_output)
        self.running = [job for job in self.running if job[1] > 0]
        self.now += 1


def test_ten_times_the_requests_get_only_the_fair_share():
    server = Server.trained(greedy=20, modest=20)
    for _ in range(1500):
        server.send("greedy", 20, num_requests=10)
        server.send("modest", 20)
        server.tick()
    assert server.served["greedy"] == pytest.approx(server.served["modest"], rel=0.02)


def test_ten_times_longer_outputs_get_only_the_fair_share():
    server = Server.trained(long=200, short=20)
    for tick in range(10_000):
        if tick % 50 == 0:
            server.send("long", 200)
            server.send("short", 20, num_requests=10)
        server.tick()
    shares = [server.served["long"] * 204 / 200, server.served["short"] * 24 / 20]  # prompts count too
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


def test_an_account_below_its_share_does_not_wait_for_a_greedy_one():
    server = Server.trained(greedy=20, modest=20)
    for tick in range(1500):
        server.send("greedy", 20, num_requests=10)
        if tick % 25 == 0:
            server.send("modest", 20)
        server.tick()
    assert server.longest_wait["modest"] <= 20, "no longer than until a slot is free"
    assert server.longest_wait["greedy"] > 500


def test_an_idle_account_gains_no_credit():
    server = Server.trained(steady=20)
    for _ in range(2000):
        server.send("steady", 20)
        server.tick()
    before = server.served["steady"]
    server.send("back", 20, num_requests=1000)
    for _ in range(1000):
        server.send("steady", 20)
        server.tick()
    gained = server.served["steady"] - before
    assert server.served["back"] <= gained + 2 * server.num_slots * 20, "at most what ran at the same time"
    assert gained == pytest.approx(server.served["back"], rel=0.15)


def test_requests_aborted_in_the_queue_cost_their_account_nothing():
    policy = FairShare()
    first = make_request(account="a")
    assert policy.key(first) == (0.0,)
    queued = [make_request(account="a") for _ in range(10)]
    last = [policy.key(request) for request in queued][-1]
    for request in queued:
        policy.finished(request, 0)
    assert policy.key(make_request(account="b")) == (0.0,), "virtual time did not jump to the end of the queue"
    assert policy.key(make_request(account="a")) < last


def test_the_computed_part_of_an_aborted_prompt_is_charged():
    policy = FairShare()
    policy.key(make_request(account="other"))
    aborted = make_request(account="a", num_prompt=1000)
    policy.key(aborted)
    policy.finished(aborted, 0, 600)
    assert policy.key(make_request(account="a")) == (600.0,)


def test_a_wrong_prediction_is_corrected_in_later_requests():
    policy = FairShare()
    policy.key(make_request(account="other"))
    keys = []
    for num_output in (1, 1000):
        account = f"wrote {num_output}"
        request = make_request(account=account, num_prompt=4)
        policy.key(request)
        policy.finished(request, num_output)
        keys.append(policy.key(make_request(account=account)))
    assert keys == [(5.0,), (1004.0,)]


@given(seed=st.integers(0, 10_000))
def test_fair_share_keeps_no_account_once_all_requests_ended(seed):
    rng, policy, open_requests = random.Random(seed), FairShare(), []
    for _ in range(rng.randrange(60)):
        if open_requests and rng.random() < 0.5:
            request = open_requests.pop(rng.randrange(len(open_requests)))
            policy.finished(request, rng.choice([0, 1, 10, 1000]))
        else:
            request = make_request(account=rng.choice(["", "a", "b", "c"]))
            assert policy.key(request) >= (0.0,)
            open_requests.append(request)
    for request in open_requests:
        policy.finished(request, 5)
    assert not policy._accounts
    assert policy.key(make_request()) == (0.0,)


@pytest.mark.parametrize("num_idle", [10 * MAX_IDLE, pytest.param(100_000, marks=pytest.mark.long)])
def test_idle_accounts_are_forgotten(num_idle):
    policy = FairShare()
    policy.key(make_request(account="active"))
    for number in range(num_idle):
        request = make_request(account=f"10.0.{number >> 8}.{number & 255}")
        policy.key(request)
        policy.finished(request, number % 3)
    assert len(policy._accounts) <= MAX_IDLE + 1


def test_an_account_is_forgotten_when_virtual_time_passes_it():
    policy = FairShare()
    policy.key(make_request(account="active"))
    brief, long = make_request(account="brief"), make_request(account="long", num_prompt=1000)
    for request in (brief, long):
        policy.key(request)
    policy.finished(brief, 1)
    assert len(policy._accounts) == 3, "it ended at 5, and virtual time is 0"
    policy.finished(long, 1)
    later = make_request(account="long")
    assert policy.key(later) == (1001.0,)
    policy.finished(later, 1)
    assert len(policy._accounts) == 2, "virtual time is 1001"


def test_a_correction_does_not_let_a_request_overtake_its_account():
    policy, requests = FairShare(), [make_request(account="a") for _ in range(10)]
    keys = [policy.key(request) for request in requests]
    for request in requests[:5]:
        policy.finished(request, 1)
    assert policy.key(make_request(account="a")) >= keys[-1]
