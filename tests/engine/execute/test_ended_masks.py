"""What the engine does when the process that finds masks ends, at any moment and for any reason, or cannot start."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from app.engine.execute import remote_sequences
from app.engine.execute.masks import AnswerEnd
from app.engine.execute.remote_sequences import MAX_ENDS, MISSING_S, NO_PROCESS, TOO_COSTLY, TOO_MANY
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NOT_SAMPLED
from app.text.grammar.children.mask_messages import Setup, Took, Turn, read_message
from tests.engine.execute import mask_setting
from tests.engine.execute.mask_setting import Play, Setting, grammar, holding, silent
from tests.text.grammar.children.scripted_process import ScriptedChildren, ScriptedProcess


def ends_at(kind: str) -> Play:
    """A process that ends when it is to do something for the first time."""

    def play(process: ScriptedProcess, turn: Turn) -> None:
        if getattr(turn, kind):
            process.end()
        else:
            process.answer(turn)

    return play


@pytest.mark.parametrize("kind", ["starts", "takes", "drafts"])
def test_nobody_fails_when_somebody_else_ends_the_process(make, kind: str):
    """At any moment: the next process begins with the tokens. What is sampled without masks counts for nothing."""
    setting = make(ends_at(kind))
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2, drafts={1: [3, 4]})
    accepted = setting.accept([3, 4, 5, 6])
    has_drafts = kind != "drafts"
    ends = [False, False, None, None] if has_drafts else [None, False, False, None]
    assert accepted == ([3, 4 if has_drafts else NOT_SAMPLED, 5, 6], ends, {})
    assert setting.late() == set()
    assert len(setting.children.processes) == 2 and setting.workers.num_started == 2
    assert {1: setting.process.tokens[setting.number(1)], 2: setting.process.tokens[setting.number(2)]} == {
        1: (3, 4, 5) if has_drafts else (3,), 2: (6,)
    }  # fmt: skip


def test_masks_that_are_there_outlive_the_process(make):
    """The next one writes none of them again, so no step waits for it."""
    setting = make(ends_at("drafts"))
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    region = setting.masks._remote._sequences[2].region
    setting.masks._remote.masks()[region] = [1 << 9, 0, 0]
    setting.children._plays.append(holding({1, 2}))
    setting.fill(1, 2, drafts={1: [3]})
    assert setting.masks.allowed(2).nonzero().flatten().tolist() == [9] and not setting.late()
    starts = [start for turn in setting.process.turns for start in turn.starts]
    assert [start.region for start in starts] == [-1, -1]
    assert setting.accept([4, 5, 6]) == ([4, NOT_SAMPLED, 6], [None, False, None], {})
    setting.now += 1.0
    assert setting.late() == {"g1", "g2"}


def test_the_sequence_that_took_too_long_fails_and_its_grammar_is_rejected(make):
    setting = make()
    setting.begin(1, 2, 3)
    setting.process.holds.add(setting.number(2))
    setting.accept([3, 3, 3])
    setting.note(setting.number(2), setting.number(2), setting.number(3))
    setting.process.end()
    setting.now += 1.0
    assert setting.late() == set()
    assert setting.masks._remote._sequences[2].failure == TOO_COSTLY
    assert setting.rejection(2) == (f"{TOO_COSTLY}.", None, True)
    assert setting.rejection(1) is setting.rejection(3) is None
    setting.fill(1, 2, 3)
    assert not setting.masks.allowed(1).any()
    assert setting.accept([4, NO_ALLOWED_TOKEN, 4]).failures == {2: TOO_COSTLY}
    assert {number: setting.process.tokens.get(number) for number in (1, 2, 3)} == {1: (3, 4), 2: None, 3: (3, 4)}
    for number in range(3):
        assert not setting.cache.is_barred("account 2")
        setting.cache.condemn(grammar(f"other {number}"), TOO_COSTLY, "account 2")
    assert setting.cache.is_barred("account 2") and not setting.cache.is_barred("account 1")


def test_an_account_can_end_few_processes(make):
    """Its sequences with the same grammar fail together; beyond its allowance all of them do, and no others."""
    setting = make()
    for number in range(1, 7):
        setting.start(number, account="mine")
    setting.start(7, text="g1", account="mine")
    setting.start(8, text="g1", account="other")
    rows = list(range(1, 9))
    setting.fill(*rows)
    for number in range(1, 5):
        assert setting.masks._remote._sequences[6].failure is None
        setting.note(setting.number(number), setting.number(number))
        setting.process.end()
        setting.fill(8)
        setting.accept([3])
    failures = {number: setting.masks._remote._sequences[number].failure for number in rows}
    assert failures == {**dict.fromkeys(range(1, 5), TOO_COSTLY), 5: TOO_MANY, 6: TOO_MANY, 7: TOO_COSTLY, 8: None}
    setting.start(9, account="mine")
    assert setting.masks._remote._sequences[9].failure == TOO_MANY


def test_a_sequence_that_begins_with_a_rejected_grammar_fails_at_once(make):
    setting = make()
    setting.accept_grammar(1)
    setting.cache.condemn(grammar("g1"), TOO_COSTLY, "somebody")
    setting.start(1)
    setting.fill(1)
    assert setting.accept([NO_ALLOWED_TOKEN]).failures == {1: TOO_COSTLY}
    assert not setting.children.processes


def test_a_grammar_is_rejected_although_its_request_was_aborted(make):
    """Else nobody would be charged for the end of the process."""
    setting = make()
    setting.accept_grammar(1)
    setting.start(1)
    setting.start(2)
    setting.fill(1, 2)
    number = setting.number(1)
    setting.process.holds.add(number)
    setting.accept([3, 3])
    setting.masks.end(1)
    setting.note(number, number)
    setting.process.end()
    assert setting.step(2).failures == {}
    assert setting.rejection(1) is not None and setting.masks._remote._regions.num_free == 15


def test_processes_that_end_again_and_again_fail_all(make):
    setting = make(*[ends_at("starts")] * (MAX_ENDS + 1))
    setting.start(1)
    setting.start(2)
    setting.step(1, 2)
    assert setting.failures() == {1: NO_PROCESS, 2: NO_PROCESS}
    assert setting.workers.num_started == MAX_ENDS and setting.late() == set()


def test_rows_fail_where_no_process_can_be_started(make, monkeypatch: pytest.MonkeyPatch):
    """In less time than the watchdog's."""
    setting = make()
    setting.children.can_fork = False
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        setting.now += 1.0

    monkeypatch.setattr(remote_sequences.time, "sleep", sleep)
    setting.start(1)
    setting.step(1)
    assert setting.failures() == {1: NO_PROCESS}
    assert MISSING_S < len(sleeps) < MISSING_S + 5 and setting.children.num_starts >= len(sleeps)
    setting.masks.end(1)
    setting.start(2)
    setting.step(2)
    assert setting.failures() == {2: NO_PROCESS} and len(sleeps) < 2 * (MISSING_S + 5)
    setting.masks.end(2)
    setting.children.can_fork = True
    setting.start(3)
    assert setting.step(3).failures == {} and setting.late() == set()


@pytest.mark.parametrize("is_culprit", [True, False])
def test_an_answer_with_all_its_tokens_does_not_fail_with_the_process(make, is_culprit: bool):
    """Although it has taken too long, or no other process can begin; others of its account fail."""
    setting = make()
    setting.start(1, max_tokens=1)
    setting.start(2, text="g1", account="account 1")
    setting.fill(1, 2)
    setting.process._play = silent(setting, "takes")
    setting.accept([3, 4])
    if is_culprit:
        setting.note(setting.number(1), setting.number(1))
        setting.process.end()
    else:
        setting.workers.close()
    setting.masks.wait()
    assert setting.masks.take_ends() == [AnswerEnd(1, 1, False)]
    assert setting.failures() == {2: TOO_COSTLY if is_culprit else NO_PROCESS}


def test_an_answer_that_is_complete_fails_no_more(make):
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.process._play = silent(setting, "takes")
    setting.accept([3])
    setting.process.reply(took=(Took(setting.number(1), 1, True, None),))
    setting.masks.wait()
    setting.workers.close()
    setting.start(2)
    setting.step(2)
    assert setting.failures() == {2: NO_PROCESS} and setting.ended == [AnswerEnd(1, 1, True)]


def test_rows_fail_at_once_when_the_server_ends(make):
    setting = make()
    setting.start(1)
    setting.fill(1)
    setting.workers.close()
    assert setting.accept([3]).failures == {} and setting.failures() == {1: NO_PROCESS}
    setting.fill(1)
    assert setting.accept([NO_ALLOWED_TOKEN]).failures == {1: NO_PROCESS}


def test_nothing_is_left_of_sequences_that_have_ended(make):
    setting = make(None, None, num_sequences=4)
    rng = np.random.default_rng(1)
    for number in range(1, 40):
        row = int(rng.integers(1, 3))
        setting.start(row, number)
        setting.fill(row)
        if rng.random() < 0.3:
            setting.process.end()
        setting.accept([3])
        if rng.random() < 0.3:
            setting.process.end()
        setting.masks.end(number)
        setting.masks.end(number)
    setting.masks._remote.receive(lambda: not setting.masks._remote._ending)
    masks = setting.masks
    assert sorted(masks._remote._regions._free) == [0, 1, 2, 3]
    assert not (
        masks._remote._sequences
        or masks._remote._by_number
        or masks._remote.late
        or masks._remote._takes
        or masks._remote._drafts
    )


class BusyChildren(ScriptedChildren):
    """Starts processes that act on a thread of their own, and read nothing while nobody reads what they say."""

    def fork_masks(self, memory: int) -> Any:
        super().fork_masks(memory)
        process = self.processes[-1]
        threading.Thread(target=self._run, args=(process,), daemon=True).start()
        return process.ours

    def _run(self, process: ScriptedProcess) -> None:
        with suppress(OSError):
            assert read_message(process._theirs, Setup)
            process._is_set_up = True
            while data := process._theirs.recv(4096):
                process.receive(data)


def test_many_sequences_begin_although_the_process_answers_meanwhile(monkeypatch: pytest.MonkeyPatch):
    """A socket holds a few hundred messages."""
    monkeypatch.setattr(mask_setting, "ScriptedChildren", BusyChildren)
    setting = Setting(num_sequences=3000)
    setting.start(1)
    setting.fill(1)
    for row in range(2, 3000):
        setting.start(row)
    sequences = setting.masks._remote._sequences
    setting.masks._remote.receive(lambda: all(each.is_ready for each in sequences.values()))
    assert len(sequences) == 2999 and len(setting.children.processes) == 1
    setting.close()
