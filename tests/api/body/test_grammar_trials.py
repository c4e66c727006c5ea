"""A new grammar is tried in a process of its own, once; hostile ones cost their account, and nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from app.api.body.grammar_trials import TOO_COSTLY_A_MINUTE, GrammarTrials
from app.contract.errors import (
    Draining,
    EngineFailed,
    GrammarTooCostly,
    InvalidValue,
    RateLimitExceeded,
    UnsupportedParameter,
)
from app.contract.grammar import Grammar, GrammarKind
from app.streaming.background import Background
from app.text.grammar import gbnf
from app.text.grammar.cache import GrammarCache
from app.text.grammar.children import fork_client
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.shortage import Shortage
from app.text.grammar.children.trial import GrammarLimits
from app.text.grammar.grammar_entries import Lease
from app.text.grammar.grammar_sources import lark
from tests.api.serving import until
from tests.fakes import FakeClock
from tests.text import toys
from tests.text.grammar.children.trials import ENDLESS, NO_FORK, PLENTY, forked_by, has_ended
from tests.text.grammar.processes import no_descriptors

SHORT = GrammarLimits(cpu_s=0.1, wall_s=600)
REJECTED = Grammar(GrammarKind.REGEX, "(?=a)")


def regex(number: int) -> Grammar:
    return Grammar(GrammarKind.REGEX, f"a{number}")


def endless(number: int) -> Grammar:
    """One of many grammars that take longer than any limit."""
    return replace(ENDLESS, source=ENDLESS.source.replace("}", f',"title":"{number}"}}'))


class Counted(ForkClient):
    """Counts the trials."""

    num_forks = 0

    def _fork(self, order: bytes, *descriptors: int) -> socket.socket:
        connection = super()._fork(order, *descriptors)
        self.num_forks += 1
        return connection


class Trials(GrammarTrials):
    """Trials for a byte-level vocabulary, whose limits can be changed before the first grammar."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cache = GrammarCache(is_served=True, clock=self.clock)
        self.text, _ = toys.toy("byte_level")
        assert self.cache.load(self.text, self.text.vocab_size, (1,)) is None
        self.limit(GrammarLimits(cpu_s=60, wall_s=600))
        self.threads = Background("text")
        super().__init__(self.cache, self.threads)

    def limit(self, limits: GrammarLimits) -> None:
        self.children = self.cache.children = Counted(self.text, self.text.vocab_size, (1,), limits)

    async def error(self, grammar: Grammar, account: str = "") -> Exception | None:
        """The error with which a lease is refused."""
        try:
            (await self.lease(grammar, account)).release()
        except Exception as error:
            return error
        return None


@pytest_asyncio.fixture
async def trials() -> AsyncIterator[Trials]:
    made = Trials()
    yield made
    made.close()
    made.threads.close()


async def test_no_process_runs_before_the_first_grammar(trials: Trials):
    assert trials.children.pid is None
    lease = await trials.lease(regex(1), "")
    assert trials.children.pid is not None and trials.cache.plain(lease.grammar) == lease.grammar


async def test_a_grammar_is_tried_once(trials: Trials):
    for _ in range(2):
        for grammar in (regex(1), regex(2), REJECTED):
            await trials.error(grammar)
    assert trials.children.num_forks == 3
    assert isinstance(await trials.error(REJECTED), InvalidValue)


async def test_gbnf_becomes_lark_in_the_other_process_only(trials: Trials, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gbnf, "lark_of_gbnf", None)
    grammar = lark('root ::= "a" | "b"')
    lease = await trials.lease(grammar, "")
    plain = trials.cache.plain(lease.grammar)
    assert plain.gbnf is None and plain.source.startswith("%llguidance")
    error = await trials.error(lark('root ::= "a" root'))
    assert isinstance(error, InvalidValue) and error.param == "grammar" and "never be completed" in error.message


async def test_a_grammar_that_comes_to_a_limit_is_rejected_for_good(trials: Trials):
    trials.limit(SHORT)
    errors = [await trials.error(ENDLESS, account) for account in ("one", "other")]
    for error in errors:
        assert isinstance(error, GrammarTooCostly)
        assert "It takes more than 0.1 s of processor time to compile. Send a simpler one" in error.message
    assert trials.children.num_forks == 1


async def killing(trials: Trials, times: int) -> None:
    """Kill as many trials, each once it runs."""
    killed: list[int] = []
    while len(killed) < times:
        await until(lambda: trials.children.pid and set(forked_by(trials.children)).difference(killed))
        killed.append(*set(forked_by(trials.children)).difference(killed))
        os.kill(killed[-1], signal.SIGKILL)


async def test_a_trial_that_somebody_has_ended_is_repeated(trials: Trials):
    trials.limit(GrammarLimits(cpu_s=2, wall_s=600))
    error, _ = await asyncio.gather(trials.error(ENDLESS), killing(trials, 1))
    assert isinstance(error, GrammarTooCostly) and trials.children.num_forks == 3, "two short ones, and a whole one"


async def test_a_grammar_whose_trials_were_ended_is_not_rejected_for_good(trials: Trials):
    for num_forks in (2, 4):
        error, _ = await asyncio.gather(trials.error(ENDLESS), killing(trials, 2))
        assert isinstance(error, EngineFailed) and trials.children.num_forks == num_forks
    assert trials.cache.entries.num_bytes == 0


async def test_the_next_grammar_starts_a_process_that_was_killed(trials: Trials):
    await trials.error(regex(1))
    pid = trials.children.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await trials.error(regex(2)) is None
    assert trials.children.pid not in (None, pid)


async def test_accounts_take_turns(trials: Trials):
    trials.limit(SHORT)
    order: list[str] = []

    async def send(grammar: Grammar, account: str) -> None:
        await trials.error(grammar, account)
        order.append(account)

    await asyncio.gather(*(send(endless(number), "many") for number in range(4)), send(regex(1), "one"))
    assert order.index("one") <= 1 and len(order) == 5


async def test_a_grammar_of_two_accounts_waits_for_the_turn_of_each(trials: Trials):
    """Not behind the other grammars of the account that has sent it first; it is tried once for both."""
    trials.limit(SHORT)
    order: list[str] = []

    async def send(grammar: Grammar, account: str) -> None:
        await trials.error(grammar, account)
        order.append(account)

    many = [send(endless(number), "many") for number in range(3)]
    await asyncio.gather(*many, send(endless(9), "many"), send(endless(9), "one"))
    assert order.index("one") <= 1 and trials.children.num_forks == 4


async def test_one_trial_of_each_kind_runs_at_a_time(trials: Trials):
    trials.limit(GrammarLimits(cpu_s=0.5, wall_s=600))
    tasks = [asyncio.create_task(trials.error(endless(number), str(number))) for number in range(3)]
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, len(forked_by(trials.children)) if trials.children.pid else 0)
        await asyncio.sleep(0.001)
    assert most <= 2 and trials.children.num_forks == 6, "a short one and a whole one of each"


async def test_no_ordinary_grammar_waits_for_those_that_take_long(trials: Trials):
    """Of always new accounts: these have their turns before it, but short ones."""
    trials.limit(GrammarLimits(cpu_s=5, wall_s=600))
    long = [asyncio.create_task(trials.error(endless(number), f"new {number}")) for number in range(3)]
    await until(lambda: trials.children.num_forks == 3 + 1)
    for number in range(10):
        assert await trials.error(regex(number), "good") is None
    assert not any(task.done() for task in long) and trials.children.num_forks == 3 + 1 + 10
    trials.close()
    await asyncio.gather(*long)


async def test_a_grammar_that_takes_long_is_accepted_while_short_ones_come_without_end(trials: Trials):
    trials.limit(GrammarLimits(cpu_s=60, wall_s=600, short_s=0.01))
    slow = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer","multipleOf":99991}')
    task, number = asyncio.create_task(trials.error(slow, "slow")), 0
    while not task.done():
        assert await trials.error(regex(number), f"new {number}") is None
        number += 1
    assert await task is None and trials.children.num_forks >= number + 2


async def test_requests_share_a_trial_and_one_that_leaves_does_not_end_it(trials: Trials):
    tasks = [asyncio.create_task(trials.lease(regex(1), "")) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    leases = [await task for task in tasks[1:]]
    assert tasks.pop(0).cancelled() and [type(lease) for lease in leases] == [Lease] * 2
    assert trials.children.num_forks == 1 and len(trials.cache.take_compile_seconds()) == 1
    (entry,) = trials.cache.entries.by_grammar.values()
    assert entry.leases == {"": 2}


async def test_a_grammar_that_nobody_waits_for_any_more_is_tried_and_kept(trials: Trials):
    task = asyncio.create_task(trials.lease(regex(1), ""))
    await asyncio.sleep(0)
    task.cancel()
    await until(lambda: not trials._trials)
    assert await trials.error(regex(1)) is None and trials.children.num_forks == 1


async def test_an_account_that_has_sent_expensive_grammars_must_wait_before_new_ones(trials: Trials):
    trials.limit(SHORT)
    await trials.error(regex(1), "one")
    for number in range(TOO_COSTLY_A_MINUTE):
        assert isinstance(await trials.error(endless(number), "one"), GrammarTooCostly)
    refused = await trials.error(regex(2), "one")
    assert isinstance(refused, RateLimitExceeded) and refused.retry_after_s == 15 and "15 s" in refused.message
    assert await trials.error(regex(1), "one") is None, "a known grammar"
    assert isinstance(await trials.error(endless(0), "one"), GrammarTooCostly), "a known rejection"
    assert await trials.error(regex(2), "other") is None
    trials.clock.advance(15)
    assert await trials.error(regex(3), "one") is None


async def test_grammars_that_wait_are_refused_once_the_allowance_is_used(trials: Trials):
    trials.limit(SHORT)
    errors = await asyncio.gather(*(trials.error(endless(number), "one") for number in range(6)))
    kinds = [type(error) for error in errors]
    assert kinds == [GrammarTooCostly] * TOO_COSTLY_A_MINUTE + [RateLimitExceeded] * 2


@pytest.mark.parametrize("is_started", [True, False])
async def test_without_descriptors_new_grammars_get_503_and_the_log_says_why_once(
    is_started: bool, trials: Trials, caplog: pytest.LogCaptureFixture
):
    if is_started:
        await trials.error(regex(0))
    for turn in (1, 2):
        caplog.clear()
        with no_descriptors():
            for number in (10 * turn, 10 * turn + 1):
                error = await trials.error(regex(number))
                assert isinstance(error, Shortage) and "Too many open files" in error.message
                assert (error.http_status, error.code, error.retry_after_s) == (503, "overloaded", 1)
            if is_started:
                assert await trials.error(regex(0)) is None, "a known one needs no trial"
        (record,) = caplog.records
        assert "Too many open files" in record.getMessage() and record.exc_info is None
        assert await trials.error(regex(10 * turn)) is None


async def test_a_fork_that_fails_is_an_overload_and_costs_nothing(trials: Trials, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fork_client, "_CHILD", NO_FORK)
    error = await trials.error(regex(1), "one")
    assert isinstance(error, Shortage) and error.reason == "Resource temporarily unavailable"
    assert not trials.cache.expensive.seconds_left("one") and trials.cache.entries.num_bytes == 0


async def test_close_ends_trials_and_processes(trials: Trials):
    trials.limit(PLENTY)
    tasks = [asyncio.create_task(trials.error(endless(number))) for number in range(2)]
    await until(lambda: trials.children.pid and forked_by(trials.children))
    pids = [trials.children.pid or 0, *forked_by(trials.children)]
    trials.close()
    assert [type(error) for error in await asyncio.gather(*tasks)] == [Draining] * 2
    await until(lambda: all(map(has_ended, pids)))


async def test_a_model_without_grammars_says_so_and_nothing_is_started():
    cache, threads = GrammarCache(is_served=True), Background("text")
    text, _ = toys.toy("word_pieces")
    cache.load(text, text.vocab_size, (1,))
    trials = GrammarTrials(cache, threads)
    with pytest.raises(UnsupportedParameter):
        await trials.lease(regex(1), "")
    trials.close()
    threads.close()
    assert cache.children is None
