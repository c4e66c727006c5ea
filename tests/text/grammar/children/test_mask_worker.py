"""The process that finds masks, spoken to through its sockets: what it says, in which order, and whom it blames."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any, cast

import numpy as np
import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind, ReasoningMarks
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.mask_memory import MAIN, NO_SEQUENCE, NOTES_BYTES, SIGNAL, WATCHER, new_memory_file
from app.text.grammar.children.mask_messages import (
    Draft,
    Drafted,
    Ready,
    Setup,
    Start,
    Take,
    Took,
    Turn,
    encode,
)
from app.text.grammar.children.mask_worker import MaskWorker
from app.text.grammar.children.work_times import culprit_of, suspects_of
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text.grammar.children.mask_process import (
    ABC,
    CLOSE,
    EOS,
    OPEN,
    QUOTE,
    REGIONS,
    TEXT,
    WORDS,
    A,
    B,
    C,
    Worker,
    X,
    Z,
    costly,
)
from tests.text.grammar.processes import children_of, wait_until


def test_a_sequence_begins_takes_tokens_and_ends(worker: Worker):
    worker.say(starts=(worker.start(3),))
    worker.wait(ready=1)
    assert worker.ready == [Ready(3, 0, worker.ready[0].is_slow, None, worker.ready[0].forced)]
    assert A in worker.mask(3) and X not in worker.mask(3)
    worker.say(takes=(Take(3, 4, (A, B)),))
    worker.wait(took=1, ready=2)
    assert worker.took == [Took(3, 2, False, None)] and worker.ready[1].num_tokens == 2
    assert {C, X} <= worker.mask(4) and A in worker.mask(3), "the mask goes to the region of the turn"
    worker.say(takes=(Take(3, 4, (C, A, A)),))
    worker.wait(took=2)
    assert worker.took[1] == Took(3, 1, True, None), "what comes behind the end is not taken"
    worker.say(ends=(3, 3, 99))
    worker.say(starts=(worker.start(3, tokens=(A,)),))
    worker.wait(ready=3)
    assert worker.ready[2].num_tokens == 1 and B in worker.mask(3)


def test_masks_and_forced_tokens_are_those_of_the_library(worker: Worker):
    grammar = Grammar(GrammarKind.REGEX, "You are (a|x) helpful")
    matcher = compile_grammar(grammar, GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,))).deep_copy()
    worker.say(starts=(worker.start(1, Constraint(grammar)),))
    num_forced = num_taken = 0
    while True:
        worker.wait(ready=num_taken + 1)
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert worker.mask(1) == set(np.flatnonzero(mask).tolist())
        forced = tuple(matcher.compute_ff_tokens())
        assert worker.ready[-1].forced == forced
        num_forced += len(forced)
        token_id = min(worker.mask(1))
        matcher.consume_token(token_id)
        worker.say(takes=(Take(1, 1, (token_id,)),))
        num_taken += 1
        worker.wait(took=num_taken)
        if worker.took[-1].is_complete:
            break
    assert num_forced > 3 and matcher.is_stopped()


def test_everything_may_come_in_one_turn_before_the_grammar_is_compiled(worker: Worker):
    """As it does after another process has ended: the order is kept for each sequence."""
    worker.say(
        starts=(worker.start(1, tokens=(A,)), worker.start(2)),
        takes=(Take(2, 2, (A,)),),
        drafts=(Draft(1, 5, (B, C)), Draft(2, 8, (B,))),
    )
    worker.wait(took=1, ready=3, drafted=2)
    assert not worker.has_ended
    assert sorted(worker.drafted, key=lambda each: each.sequence_id) == [Drafted(1, 1, True), Drafted(2, 1)]
    assert B in worker.mask(1) and B in worker.mask(2)
    assert {C, X} <= worker.mask(5) and not worker.mask(6) and {C, X} <= worker.mask(8)


def test_drafts_change_no_place(worker: Worker):
    worker.say(starts=(worker.start(1),), drafts=(Draft(1, 5, (A, B, C)),))
    worker.say(drafts=(Draft(1, 9, (A, X, B)),))
    worker.say(takes=(Take(1, 1, (A,)),))
    worker.wait(took=1, ready=2, drafted=2)
    assert worker.drafted == [Drafted(1, 2, True), Drafted(1, 1)] and worker.took == [Took(1, 1, False, None)]
    assert B in worker.mask(9) and not worker.mask(10), "nothing behind the first token that is forbidden"
    assert B in worker.mask(1)


def test_masks_behind_forced_tokens_come_with_the_mask_before_them(worker: Worker):
    """As many as are asked for, up to the end of the answer; the sequence stays where it is."""
    grammar = Constraint(Grammar(GrammarKind.REGEX, "[ab]bc"))
    worker.say(starts=(worker.start(1, grammar), worker.start(2, grammar)))
    worker.wait(ready=2)
    worker.say(takes=(Take(1, 1, (A,), 5), Take(2, 2, (A,))))
    worker.wait(took=2, ready=4)
    with_masks, without = sorted(worker.ready[2:], key=lambda each: each.sequence_id)
    assert with_masks.forced == without.forced == (B, C)
    assert with_masks.ahead == Drafted(1, 1, True) and without.ahead is None
    assert worker.mask(1) == {B} and worker.mask(5) == {C} and not worker.mask(6)
    worker.say(takes=(Take(1, 1, (B, C), 5),))
    worker.wait(took=3)
    assert worker.took[-1] == Took(1, 2, True, None)


@pytest.mark.parametrize("num_sequences", [1, 20])
def test_tokens_are_told_before_the_masks_behind_them(worker: Worker, num_sequences: int):
    """Whether the main thread makes these, as it does where they are few, or others do."""
    numbers = range(1, num_sequences + 1)
    text = Constraint(Grammar(GrammarKind.REGEX, "[ab]*"))
    worker.say(starts=tuple(worker.start(number, text) for number in numbers))
    worker.wait(ready=num_sequences)
    for turn in range(1, 30):
        worker.say(takes=tuple(Take(number, number, (A,)) for number in numbers))
        while len(worker.ready) < (turn + 1) * num_sequences:
            worker.wait(ready=len(worker.ready) + 1)
            taken = [each.sequence_id for each in worker.took]
            assert all(taken.count(each.sequence_id) >= each.num_tokens for each in worker.ready)


def test_a_draft_may_cross_the_reasoning(worker: Worker):
    constraint = Constraint(ABC.grammar, ReasoningMarks(OPEN, CLOSE), 1)
    worker.say(starts=(worker.start(1, constraint),), drafts=(Draft(1, 5, (OPEN, X, CLOSE, A)),))
    worker.wait(ready=1, drafted=1)
    assert worker.drafted == [Drafted(1, 4)]
    assert {OPEN, A} <= worker.mask(1) and X not in worker.mask(1)
    assert X in worker.mask(5) and EOS not in worker.mask(5) and worker.mask(6) == {CLOSE}
    assert A in worker.mask(7) and OPEN not in worker.mask(7) and B in worker.mask(8)
    worker.say(takes=(Take(1, 1, (OPEN, X)),))
    worker.wait(took=1, ready=2)
    assert worker.ready[-1].forced == (CLOSE,) and worker.mask(1) == {CLOSE}


def test_a_sequence_without_a_region_has_no_mask_until_it_has_one(worker: Worker):
    before = bytes(worker.memory.words)
    worker.say(starts=(Start(1, -1, "", ABC, (A,), 1),))
    worker.wait(ready=1)
    assert bytes(worker.memory.words) == before and not suspects_of(worker.memory.notes)
    worker.say(takes=(Take(1, 7, ()),))
    worker.wait(took=1, ready=2)
    assert worker.took == [Took(1, 0, False, None)] and B in worker.mask(7)


def test_an_end_is_answered_once_where_a_mask_is_not_made_yet(worker: Worker):
    """The region may be given to another sequence then."""
    worker.say(starts=(worker.start(1),))
    worker.say(ends=(1,))
    worker.wait(ready=1)
    worker.say(starts=(worker.start(2),))
    worker.wait(ready=2)
    assert [each.sequence_id for each in worker.ready] == [1, 2]


def test_a_grammar_that_forbids_its_tokens_fails_its_sequence_alone(worker: Worker):
    worker.say(starts=(worker.start(1), worker.start(2)), takes=(Take(1, 1, (A, A, B)), Take(2, 2, (A,))))
    worker.wait(took=2, ready=3)
    assert worker.took[0].num_taken == 2 and worker.took[0].failure and not worker.took[0].is_complete
    assert worker.took[1] == Took(2, 1, False, None) and B in worker.mask(2)


def test_a_limit_of_the_library_is_reported(worker: Worker):
    worker.say(starts=(worker.start(1, costly(11)), worker.start(2)))
    worker.wait(ready=2)
    failure = worker.take_one_by_one(1, (QUOTE, *[Z] * 8))
    assert failure is not None and "too complex" in failure
    assert worker.take_one_by_one(2, (A, B)) is None


def test_a_grammar_that_is_rejected_fails_its_sequence(worker: Worker):
    bad = Constraint(Grammar(GrammarKind.REGEX, "a{5000000000}"))
    worker.say(starts=(worker.start(1, bad), worker.start(2)), drafts=(Draft(1, 5, (A,)),))
    worker.wait(ready=2, drafted=1)
    failures = {each.sequence_id: each.failure for each in worker.ready}
    assert failures[1] is not None and failures[2] is None and worker.drafted == [Drafted(1, 0)]
    worker.say(takes=(Take(1, 1, (A,)),))
    worker.wait(took=1)
    assert worker.took == [Took(1, 0, False, failures[1])]


@pytest.mark.parametrize("how", ["mask", "draft"])
def test_the_sequence_that_takes_too_long_is_noted(worker: Worker, how: str):
    """Among others."""
    bad, letters = 20, (QUOTE, *[Z] * 8)
    worker.say(starts=tuple(worker.start(number) for number in range(1, 20)))
    worker.wait(ready=19)
    worker.say(starts=(worker.start(bad, costly(21), letters[:3]),))
    worker.wait(ready=20)
    if how == "mask":
        worker.take_one_by_one(bad, letters[3:])
    else:
        worker.say(drafts=(Draft(bad, 0, letters[3:7]),))
        worker.wait_for_end()
    assert worker.has_ended and worker.memory.notes[0] == bad


@pytest.mark.parametrize("how", ["begins", "takes"])
def test_the_sequence_of_a_call_that_keeps_the_lock_is_blamed(worker: Worker, how: str):
    """Tokens are taken with the interpreter's lock, so that no thread can note who takes too long; nobody else is."""
    bad, letters = 20, (QUOTE, *[Z] * 8)
    worker.say(starts=(worker.start(1),))
    worker.wait(ready=1)
    if how == "begins":
        worker.say(starts=(worker.start(bad, costly(21), letters),))
    else:
        worker.say(starts=(worker.start(bad, costly(21)),), takes=(Take(bad, bad, letters),))
    worker.wait_for_end()
    notes = worker.memory.notes
    assert notes[0] == 0 and notes[SIGNAL] == signal.SIGPROF and suspects_of(notes) == {bad} == {culprit_of(notes)}


class Noting(dict[int, Any]):
    """Sequences that see the note of a thread when they are forgotten."""

    def __init__(self, notes: memoryview) -> None:
        super().__init__()
        self.seen: list[int] = []
        self._notes = notes

    def pop(self, number: int, default: Any = None) -> Any:
        self.seen.append(self._notes[MAIN])
        return default


def test_what_sequences_leave_is_freed_under_a_note_that_blames_none(monkeypatch: pytest.MonkeyPatch):
    """It may take long: a sequence whose thread waits meanwhile would seem to be the only one at work."""
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)  # it would end this process
    descriptor = new_memory_file(NOTES_BYTES + 4 * WORDS * REGIONS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(Setup(1, WORDS, REGIONS, (EOS,))))
        made = MaskWorker(theirs, descriptor, cast(GrammarVocabulary, None), 0.1)
        notes, thread, during = made._memory.notes, 4, list[int]()
        rows = made._rows = Noting(notes)
        made._take_turn(Turn(ends=(1, 2), starts=(Start(3, 3, "", ABC, (), 1),)))
        assert rows.seen == [NO_SEQUENCE, NO_SEQUENCE] and notes[MAIN] == 0
        monkeypatch.setattr(made._jobs, "end", lambda row, seconds: True)
        assert made._do(thread, rows[3], lambda row: during.append(notes[thread]))
        assert during == [3] and notes[thread] == NO_SEQUENCE
    os.close(descriptor)


def test_a_process_that_stays_large_ends_when_no_sequence_is_there(monkeypatch: pytest.MonkeyPatch):
    """The next one begins small; a sequence would have to begin again there, so none loses its process by that."""
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)  # it would end this process
    ends = list[int]()
    monkeypatch.setattr(os, "_exit", ends.append)
    descriptor = new_memory_file(NOTES_BYTES + 4 * WORDS * REGIONS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(Setup(1, WORDS, REGIONS, (EOS,))))
        made = MaskWorker(theirs, descriptor, cast(GrammarVocabulary, None), 0.1)
        monkeypatch.setattr(made._grammars, "shrink", lambda: True)
        made._take_turn(Turn(starts=(Start(3, 3, "", ABC, (), 1),)))
        made._shrink(WATCHER)
        assert ends == []
        made._take_turn(Turn(ends=(3,)))
        monkeypatch.setattr(made._grammars, "shrink", lambda: False)
        made._shrink(WATCHER)
        assert ends == []
        monkeypatch.setattr(made._grammars, "shrink", lambda: True)
        made._shrink(WATCHER)
        assert ends == [0] and suspects_of(made._memory.notes.tolist()) == frozenset()
    os.close(descriptor)


def test_a_grammar_that_takes_long_to_compile_keeps_no_other_waiting(worker: Worker):
    long = Constraint(Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 99991}'))
    worker.say(starts=(Start(1, 1, "attacker", long, (), 1, 0.4), worker.start(2, account="other")))
    worker.wait(ready=1)
    assert worker.ready[0].sequence_id == 2
    worker.wait(ready=2)
    assert worker.ready[1].failure is None


def test_many_cheap_sequences_cost_nobody(children: ForkClient):
    """Together they take longer than one may."""
    worker = Worker(children, num_threads=1)
    text = Constraint(Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'))
    try:
        for turn in range(40):
            numbers = range(1 + 20 * turn, 21 + 20 * turn)
            starts = tuple(Start(number, number % REGIONS, "many", text, (), 1) for number in numbers)
            worker.say(starts=starts)
        worker.wait(ready=800)
        assert len(worker.ready) == 800 and not worker.has_ended and worker.memory.notes[0] == 0
    finally:
        worker.close()


def test_a_signal_blames_nobody(worker: Worker, children: ForkClient):
    worker.say(starts=(worker.start(1),))
    worker.wait(ready=1)
    assert children.pid is not None
    pid = children.pid
    wait_until(lambda: len(children_of(pid)) == 1)  # others have ended
    (pid,) = children_of(pid)
    worker.memory.notes[5] = 1  # as if a thread worked on it
    os.kill(pid, signal.SIGKILL)
    worker.wait_for_end()
    assert worker.memory.notes[SIGNAL] == signal.SIGKILL
    assert culprit_of(worker.memory.notes) == 0 and suspects_of(worker.memory.notes) == {1}


def test_the_process_ends_with_the_engines_socket(children: ForkClient):
    worker = Worker(children)
    worker.say(starts=(worker.start(1),))
    worker.wait(ready=1)
    worker.close()
    pid = children.pid
    assert pid is not None
    wait_until(lambda: not children_of(pid))


def test_a_process_that_gets_no_setup_ends(children: ForkClient):
    descriptor = new_memory_file(NOTES_BYTES)
    children.fork_masks(descriptor).close()
    os.close(descriptor)
    pid = children.pid
    assert pid is not None
    wait_until(lambda: not children_of(pid))
