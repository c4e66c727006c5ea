"""Work on grammars: in order for each sequence, by one thread at a time for each grammar, fair between accounts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children import account_turns, mask_jobs
from app.text.grammar.children.account_turns import MAX_ACCOUNTS
from app.text.grammar.children.mask_jobs import NOT_NEEDED, QUICK_S, SURPRISE_S, SURPRISES_S, Jobs
from app.text.grammar.children.mask_messages import Start
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.children.worker_row import Job, Row
from app.text.grammar.compiled import CompiledGrammar
from tests.text.grammar.processes import HANG_S

CONSTRAINT = Constraint(Grammar(GrammarKind.REGEX, "a"))
COMPILED = CompiledGrammar(cast(Any, None))


def nothing(row: Row) -> None:
    """A job."""


def make_row(number: int, lexer: SharedLexer | None = None, account: str = "", compile_s: float = 0.0) -> Row:
    return Row(Start(number, 0, account, CONSTRAINT, (), 1, compile_s), lexer or SharedLexer(), nothing)


def compiled() -> SharedLexer:
    lexer = SharedLexer()
    lexer.compiled = COMPILED
    return lexer


def begun(names: list[str]) -> Jobs:
    """Jobs whose sequences begin by noting that they do."""
    return Jobs(named(names, "begin"))


def compile_next(jobs: Jobs, *, is_long: bool = False, seconds: float = 0.0) -> int:
    """Compile a grammar; return for which sequence."""
    lexer, row = jobs.next_to_compile(is_long=is_long)
    jobs.end_compiling(lexer, COMPILED, row, seconds)
    return row.start.sequence_id


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
    """Its grammar is compiled first."""
    names = list[str]()
    jobs, row = begun(names), make_row(1)
    jobs.begin(row)
    jobs.put([row], named(names, "take"))
    jobs.put([row], named(names, "draft"))
    assert jobs.begun.is_set(), "the thread that watches is awake"
    assert compile_next(jobs) == 1
    for _ in range(3):
        work(jobs)
    assert names == ["begin1", "take1", "draft1"] and jobs.num_open == 0 and not jobs.begun.is_set()


def test_a_sequence_that_begins_again_does_what_is_left_first_and_then_what_waits():
    """Its grammar is compiled in between; others with the old lexer go on."""
    names, old, new = list[str](), compiled(), SharedLexer()
    jobs, row, other = begun(names), make_row(1, old), make_row(2, old)
    for each in (row, other):
        jobs.begin(each)
        work(jobs)
    jobs.put([row], named(names, "find"))
    jobs.put([row, other], named(names, "draft"))
    (found, job) = jobs.take()
    assert found is row
    jobs.put([row], named(names, "take"))
    assert not jobs.end_to_begin_again(row, job, new, 0.1), "the other one has a job"
    jobs.put([row], named(names, "late"))
    work(jobs)
    assert names[2:] == ["draft2"] and jobs.num_open == 1 and jobs.hold([row]) == set()
    assert compile_next(jobs) == 1 and row.lexer is new and row.job is job
    for _ in range(4):
        work(jobs)
    assert names[3:] == ["begin1", "draft1", "take1", "late1"] and jobs.num_open == 0
    assert jobs.hold([row]) == {row}


def test_a_held_sequence_may_begin_again():
    names = list[str]()
    jobs, row, take = begun(names), make_row(1, compiled()), named(names, "take")
    jobs.begin(row)
    work(jobs)
    assert jobs.hold([row]) == {row}
    jobs.release({row})
    jobs.begin_again(row, take, SharedLexer())
    assert jobs.hold([row]) == set() and compile_next(jobs) == 1 and row.job is take
    work(jobs)
    assert names == ["begin1", "begin1"] and jobs.hold([row]) == {row}


def test_only_grammars_that_nobody_works_on_are_held():
    names, shared = list[str](), compiled()
    jobs, free, busy, same, new = (
        begun(names),
        *(make_row(n, each) for n, each in enumerate([compiled(), shared, shared, None], 1)),
    )
    for row in (free, busy, same):
        jobs.begin(row)
        work(jobs)
    jobs.begin(new)
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
    names = list[str]()
    jobs, rows = begun(names), [make_row(number, compiled(), account) for number, account in enumerate("aaab")]
    for row in rows:
        jobs.begin(row)
    for _ in rows:
        work(jobs, 0.1)
    assert names == ["begin0", "begin3", "begin1", "begin2"]


def test_grammars_are_compiled_for_the_account_first_that_has_cost_least():
    jobs = Jobs(nothing)
    for number, account in enumerate("aaab"):
        jobs.begin(make_row(number, account=account))
    assert [compile_next(jobs, seconds=0.1) for _ in range(4)] == [0, 3, 1, 2]


def test_a_grammar_is_compiled_once_for_all_that_wait_and_in_the_turn_of_any_of_them():
    names, shared = list[str](), SharedLexer()
    jobs = begun(names)
    for number, account in enumerate("aa"):
        jobs.begin(make_row(number, account=account))
    for number, account in enumerate("aab", 2):
        jobs.begin(make_row(number, shared, account))
    found = [compile_next(jobs, seconds=0.1) for _ in range(2)]
    assert found == [0, 4], "the last one's account has cost least"
    for _ in range(4):
        work(jobs)
    assert names == ["begin0", "begin2", "begin3", "begin4"]
    jobs.begin(make_row(5, shared))
    work(jobs)
    assert names[-1] == "begin5", "it is compiled"


def test_a_grammar_that_is_refused_lets_its_sequences_say_why():
    failures = list[str | None]()
    jobs, shared = Jobs(lambda row: failures.append(row.lexer.refusal)), SharedLexer()
    for number in range(2):
        jobs.begin(make_row(number, shared))
    lexer, row = jobs.next_to_compile(is_long=False)
    jobs.end_compiling(lexer, "It is empty", row, 0.0)
    for _ in range(2):
        work(jobs)
    assert failures == ["It is empty"] * 2 and jobs.num_open == 0


def test_a_grammar_whose_sequences_have_ended_is_not_compiled_and_may_be_for_the_next():
    failures = list[str | None]()
    jobs, shared = Jobs(lambda row: failures.append(row.lexer.refusal)), SharedLexer()
    ended, other, later = make_row(1, shared), make_row(2), make_row(3, shared)
    jobs.begin(ended)
    jobs.begin(other)
    ended.is_ended = True
    assert compile_next(jobs) == 2
    for _ in range(2):
        work(jobs)
    assert sorted(map(str, failures)) == [NOT_NEEDED, "None"]
    jobs.begin(later)
    assert compile_next(jobs) == 3 and shared.is_settled


def test_a_sequence_may_end_while_its_grammar_is_chosen():
    """It ends on another thread, without the lock."""

    class Ending(Row):
        looks = 0

        @property
        def is_ended(self) -> bool:
            self.looks += 1
            return self.looks > 1

        @is_ended.setter
        def is_ended(self, value: bool) -> None:
            pass

    jobs = Jobs(nothing)
    row = Ending(Start(1, 0, "", CONSTRAINT, (), 1), SharedLexer(), nothing)
    jobs.begin(row)
    assert compile_next(jobs) == 1


def test_grammars_that_take_long_to_compile_keep_no_other_waiting():
    jobs, lexer = Jobs(nothing), SharedLexer()
    jobs.begin(make_row(1, lexer, compile_s=0.8))
    jobs.begin(make_row(2, lexer))
    jobs.begin(make_row(3, compile_s=0.01))
    assert compile_next(jobs) == 3
    assert compile_next(jobs, is_long=True) == 1


def test_who_goes_on_for_long_does_not_wait_for_accounts_that_come_later(monkeypatch: pytest.MonkeyPatch):
    """New accounts may come without end, each with a grammar that takes a second."""
    now = 100.0
    monkeypatch.setattr(account_turns.time, "monotonic", lambda: now)
    jobs = Jobs(nothing)
    for second in range(100):  # an ordinary client: 20 ms in each second
        now += 1
        jobs.spend(make_row(second, account="good"), 0.02)
    jobs.begin(make_row(1, account="new"))
    jobs.begin(make_row(2, account="good"))
    found = []
    for number in range(3, 6):
        now += 1
        found.append(compile_next(jobs, seconds=1.0))
        jobs.begin(make_row(number, account=f"new{number}"))
    assert found == [1, 2, 3]


def test_a_grammar_that_many_use_does_not_keep_its_turn():
    names, shared = list[str](), compiled()
    jobs = begun(names)
    for row in (make_row(1, shared, "a"), make_row(2, shared, "b"), make_row(3, compiled(), "c")):
        jobs.begin(row)
    for _ in range(3):
        work(jobs)
    assert names == ["begin1", "begin3", "begin2"]


def test_the_thread_that_compiles_waits_for_work():
    jobs, row = Jobs(nothing), make_row(1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(partial(jobs.next_to_compile, is_long=False))
        jobs.begin(row)
        assert waiting.result(HANG_S) == (row.lexer, row)


def test_what_took_no_time_is_done_at_once_unless_its_account_has_surprised_before(monkeypatch: pytest.MonkeyPatch):
    """Or each of its sequences could be quick until others wait for it."""
    now = 100.0
    monkeypatch.setattr(mask_jobs.time, "monotonic", lambda: now)
    jobs = Jobs(nothing)
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
    jobs = Jobs(nothing)
    for number in range(MAX_ACCOUNTS + 10):
        jobs.spend(make_row(number, account=str(number)), 2 * SURPRISE_S)
    assert len(jobs._surprised_at) <= MAX_ACCOUNTS
    assert str(MAX_ACCOUNTS + 9) in jobs._surprised_at
