"""Work on grammars: in order for each sequence, by one thread at a time for each grammar, fair between accounts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children import account_turns, mask_jobs
from app.text.grammar.children.account_turns import MAX_ACCOUNTS
from app.text.grammar.children.mask_jobs import (
    QUICK_S,
    SURPRISE_S,
    SURPRISES_S,
    Job,
    Jobs,
    Lexer,
    Row,
)
from app.text.grammar.children.mask_messages import Start
from tests.text.grammar.processes import HANG_S

CONSTRAINT = Constraint(Grammar(GrammarKind.REGEX, "a"))


def nothing(row: Row) -> None:
    """A job."""


def make_row(number: int, lexer: Lexer | None = None, account: str = "", compile_s: float = 0.0) -> Row:
    return Row(Start(number, 0, account, CONSTRAINT, (), 1, compile_s), lexer or Lexer(), nothing)


def named(names: list[str], name: str) -> Job:
    def job(row: Row) -> None:
        names.append(f"{name}{row.start.sequence_id}")

    return job


def work(jobs: Jobs, seconds: float = 0.0) -> None:
    """Do one job."""
    row, job = jobs.take()
    job(row)
    jobs.end(row, seconds)


def test_nothing_comes_before_the_beginning_of_a_sequence():
    """Its grammar may be compiled first."""
    jobs, names = Jobs(), list[str]()
    row = make_row(1)
    jobs.put([row], named(names, "take"))
    jobs.put([row], named(names, "draft"))
    assert jobs.num_open == 0
    jobs.begin(row, named(names, "begin"))
    for _ in range(3):
        work(jobs)
    assert names == ["begin1", "take1", "draft1"] and jobs.num_open == 0 and not jobs.begun.is_set()


def test_a_sequence_that_begins_again_does_what_is_left_first_and_then_what_waits():
    """Its grammar is compiled in between; others with the old lexer go on."""
    jobs, names, old, new = Jobs(), list[str](), Lexer(), Lexer()
    row, other = make_row(1, old), make_row(2, old)
    for each in (row, other):
        jobs.begin(each, named(names, "begin"))
        work(jobs)
    jobs.put([row], named(names, "find"))
    jobs.put([row, other], named(names, "draft"))
    (found, job) = jobs.take()
    assert found is row
    jobs.put([row], named(names, "take"))
    assert not jobs.end_to_begin_again(row, job, new, 0.1), "the other one has a job"
    jobs.put([row], named(names, "late"))
    work(jobs)
    assert names[2:] == ["draft2"] and jobs.num_open == 0 and jobs.hold([row]) == set()
    assert jobs.next_to_compile(is_long=False) is row and row.lexer is new
    jobs.end_compiling(row, 0.1)
    jobs.begin(row, row.job)
    for _ in range(4):
        work(jobs)
    assert names[3:] == ["find1", "draft1", "take1", "late1"] and jobs.num_open == 0
    assert jobs.hold([row]) == {row}


def test_a_held_sequence_may_begin_again():
    jobs, names, old, new = Jobs(), list[str](), Lexer(), Lexer()
    row = make_row(1, old)
    jobs.begin(row, named(names, "begin"))
    work(jobs)
    assert jobs.hold([row]) == {row}
    jobs.release({row})
    jobs.begin_again(row, named(names, "take"), new)
    assert jobs.hold([row]) == set() and jobs.next_to_compile(is_long=False) is row
    jobs.end_compiling(row, 0.0)
    jobs.begin(row, row.job)
    work(jobs)
    assert names == ["begin1", "take1"] and jobs.hold([row]) == {row}


def test_only_grammars_that_nobody_works_on_are_held():
    jobs, names, shared = Jobs(), list[str](), Lexer()
    free, busy, same, new = make_row(1), make_row(2, shared), make_row(3, shared), make_row(4)
    for row in (free, busy, same):
        jobs.begin(row, named(names, "begin"))
        work(jobs)
    jobs.put([busy], named(names, "find"))
    taken = jobs.take()
    assert jobs.hold([free, busy, same, new]) == {free}
    jobs.put([free], named(names, "find"))
    jobs.put([same], named(names, "take"))
    jobs.end(taken[0], 0.0)
    work(jobs)
    assert names[-1] == "take3", "the other one's grammar is held"
    jobs.release({free})
    work(jobs)
    assert names[-1] == "find1" and jobs.hold([free, busy, same]) == {free, busy, same}


def test_the_account_that_has_cost_least_comes_first():
    jobs, names = Jobs(), list[str]()
    rows = [make_row(number, account=account) for number, account in enumerate("aaab")]
    for row in rows:
        jobs.begin(row, named(names, "begin"))
    for _ in rows:
        work(jobs, 0.1)
    assert names == ["begin0", "begin3", "begin1", "begin2"]


def test_grammars_are_compiled_for_the_account_first_that_has_cost_least():
    jobs = Jobs()
    for number, account in enumerate("aaab"):
        jobs.compile_for(make_row(number, account=account))
    found = []
    for _ in range(4):
        row = jobs.next_to_compile(is_long=False)
        assert jobs.begun.is_set(), "the thread that watches is awake"
        jobs.end_compiling(row, 0.1)
        found.append(row.start.sequence_id)
    assert found == [0, 3, 1, 2] and not jobs.begun.is_set()


def test_grammars_that_take_long_to_compile_keep_no_other_waiting():
    jobs, long, short = Jobs(), make_row(1, compile_s=0.8), make_row(2, compile_s=0.01)
    jobs.compile_for(long)
    jobs.compile_for(short)
    assert jobs.next_to_compile(is_long=False) is short
    assert jobs.next_to_compile(is_long=True) is long


def test_a_grammar_is_compiled_by_one_thread_whatever_is_known_of_it_later():
    jobs, lexer = Jobs(), Lexer()
    first, second = make_row(1, lexer, compile_s=0.8), make_row(2, lexer)
    for row in (first, second):
        jobs.compile_for(row)
    assert [jobs.next_to_compile(is_long=True) for _ in range(2)] == [first, second]


def test_who_goes_on_for_long_does_not_wait_for_accounts_that_come_later(monkeypatch: pytest.MonkeyPatch):
    """New accounts may come without end, each with a grammar that takes a second."""
    now = 100.0
    monkeypatch.setattr(account_turns.time, "monotonic", lambda: now)
    jobs = Jobs()
    for second in range(100):  # an ordinary client: 20 ms in each second
        now += 1
        jobs.spend(make_row(second, account="good"), 0.02)
    jobs.compile_for(make_row(1, account="new"))
    jobs.compile_for(make_row(2, account="good"))
    found = []
    for number in range(3, 6):
        now += 1
        row = jobs.next_to_compile(is_long=False)
        jobs.end_compiling(row, 1.0)
        jobs.compile_for(make_row(number, account=f"new{number}"))
        found.append(row.start.sequence_id)
    assert found == [1, 2, 3]


def test_a_grammar_that_many_use_does_not_keep_its_turn():
    jobs, names, shared = Jobs(), list[str](), Lexer()
    for row in (make_row(1, shared, "a"), make_row(2, shared, "b"), make_row(3, account="c")):
        jobs.begin(row, named(names, "begin"))
    for _ in range(3):
        work(jobs)
    assert names == ["begin1", "begin3", "begin2"]


def test_the_thread_that_compiles_waits_for_work():
    jobs, row = Jobs(), make_row(1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(partial(jobs.next_to_compile, is_long=False))
        jobs.compile_for(row)
        assert waiting.result(HANG_S) is row


def test_what_took_no_time_is_done_at_once_unless_its_account_has_surprised_before(monkeypatch: pytest.MonkeyPatch):
    """Or each of its sequences could be quick until others wait for it."""
    now = 100.0
    monkeypatch.setattr(mask_jobs.time, "monotonic", lambda: now)
    jobs = Jobs()
    rows = [make_row(number, account=account) for number, account in enumerate("aabb")]
    assert not jobs.is_quick(rows[:1]), "it is not known"
    for row in rows:
        jobs.spend(row, QUICK_S / 4)
    assert jobs.is_quick(rows[:3]) and not jobs.is_quick(rows), "together they would take too long"
    jobs.spend(rows[0], 2 * SURPRISE_S)
    jobs.spend(rows[0], 0.0)
    assert not jobs.is_quick(rows[:1]) and not jobs.is_quick(rows[1:2]) and jobs.is_quick(rows[2:])
    now += SURPRISES_S
    assert jobs.is_quick(rows[:2])


def test_few_accounts_are_kept():
    jobs = Jobs()
    for number in range(MAX_ACCOUNTS + 10):
        jobs.spend(make_row(number, account=str(number)), 2 * SURPRISE_S)
    assert len(jobs._surprised_at) <= MAX_ACCOUNTS
    assert str(MAX_ACCOUNTS + 9) in jobs._surprised_at
