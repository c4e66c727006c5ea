"""Sequences whose grammar has come to a limit of the library, in the process that finds masks."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children.kept_grammars import MAX_OWN, MAX_SPENT
from app.text.grammar.children.mask_memory import NOTES_BYTES, new_memory_file
from app.text.grammar.children.mask_messages import (
    Draft,
    Drafted,
    Setup,
    Start,
    Take,
    encode,
)
from app.text.grammar.children.mask_worker import MaskWorker
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.children.worker_row import Row
from app.text.grammar.compile import compile_grammar
from app.text.grammar.compiled import MAX_ROUNDS, CompiledGrammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text.grammar.children.mask_process import EOS, QUOTE, REGIONS, TEXT, WORDS, Worker, Z, costly
from tests.text.grammar.many_states import MANY_STATES, NUM_ROWS, NUM_TOKENS


def test_no_sequence_fails_because_others_have_the_same_grammar(worker: Worker):
    """Together they come to the library's limit of states; each has the masks that it has alone."""
    vocabulary, rng = GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,)), random.Random(1)
    alone = [compile_grammar(MANY_STATES, vocabulary) for _ in range(NUM_ROWS)]
    worker.say(starts=tuple(worker.start(number, Constraint(MANY_STATES)) for number in range(NUM_ROWS)))
    for turn in range(NUM_TOKENS):
        worker.wait(took=turn * NUM_ROWS, ready=(turn + 1) * NUM_ROWS)
        assert not worker.has_ended and not any(each.failure for each in (*worker.took, *worker.ready))
        takes = []
        for number, matcher in enumerate(alone):
            mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            assert worker.mask(number) == set(np.flatnonzero(mask).tolist()), (turn, number)
            token_id = rng.choice(sorted(worker.mask(number)))
            matcher.consume_token(token_id)
            takes.append(Take(number, number, (token_id,)))
        worker.say(takes=tuple(takes))
    worker.wait(took=NUM_TOKENS * NUM_ROWS)
    assert not any(each.failure for each in worker.took)


def test_a_grammar_that_was_brought_to_its_limit_serves_who_begins_later(worker: Worker):
    worker.say(starts=(worker.start(1, costly(11)),))
    worker.wait(ready=1)
    assert worker.take_one_by_one(1, (QUOTE, *[Z] * 8)) is not None
    before = len(worker.ready)
    worker.say(starts=(worker.start(2, costly(11), (QUOTE,)),))
    worker.wait(ready=before + 1)
    assert worker.ready[-1].failure is None and Z in worker.mask(2)


def test_a_sequence_may_begin_with_tokens_that_took_more_work_than_one_step_may(worker: Worker):
    """As it does after a preemption or the end of a process: it fails no more than if it had begun here."""
    grammar, rng = Grammar(GrammarKind.REGEX, "(.*a.{200})+WORD"), random.Random(1)
    matcher, tokens = compile_grammar(grammar, GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,))), list[int]()
    for _ in range(300):
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        tokens.append(rng.choice(np.flatnonzero(mask).tolist()))
        assert matcher.consume_token(tokens[-1])
    worker.say(starts=(worker.start(1, Constraint(grammar), tuple(tokens)),))
    worker.wait(ready=1)
    assert worker.ready[0].failure is None
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    assert worker.mask(1) == set(np.flatnonzero(mask).tolist())


def test_masks_behind_tokens_that_may_come_fail_no_sequence(worker: Worker):
    """Where one comes to a limit there are none, and the sequence stays where it is."""
    tokens = (QUOTE, Z, Z)
    worker.say(starts=(worker.start(1, costly(11), tokens),))
    worker.wait(ready=1)
    worker.say(drafts=(Draft(1, 2, (Z,) * 8),))
    worker.wait(ready=1, drafted=1)
    assert worker.drafted == [Drafted(1, -1)]
    assert worker.take_one_by_one(1, (Z,)) is None and Z in worker.mask(1)
    failure = worker.take_one_by_one(1, (Z,) * 8)
    assert failure is not None and "too complex" in failure


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[MaskWorker]:
    """The worker of a process, in this one and without its threads: a test does their work."""
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)  # it would end this process, perhaps tests later
    ours, theirs = socket.socketpair()
    memory = new_memory_file(NOTES_BYTES + 4 * WORDS * REGIONS)
    ours.sendall(encode(Setup(0, WORDS, REGIONS, (EOS,))))
    with ours, theirs:
        yield MaskWorker(theirs, memory, GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,)), limit_s=60)
    with suppress(OSError):
        os.close(memory)


def test_more_guilty_sequences_than_lexers_of_their_own_fail_after_so_many_rounds(idle: MaskWorker):
    """An innocent sequence begins before them on each lexer that they share, so that none spends one alone."""
    vocabulary, constraint = GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,)), costly(11)
    assert constraint.grammar is not None
    rounds: dict[int, int] = {}
    rows = {
        number: Row(Start(number, number, "", constraint, (QUOTE, *[Z] * 6), 1), SharedLexer(), idle._find)
        for number in range(1, MAX_OWN + 3)
    }
    for number, row in rows.items():
        row.num_spent = MAX_SPENT
        row.lexer = idle._grammars.lexer_again(constraint.grammar, row.num_spent)
        while row.mask is None or row.mask.failure is None:
            rounds[number] = rounds.get(number, 0) + 1
            assert rounds[number] <= MAX_ROUNDS, "it begins again for ever"
            if row.lexer.compiled is None:
                row.lexer.compiled = CompiledGrammar.compile(constraint.grammar, vocabulary, is_again=True)
            if number > MAX_OWN:
                row.lexer.compiled.matcher()
            if idle._begin(row) is not None:
                row.lexer = idle._other_lexer(row)
        assert "too complex" in row.mask.failure
    assert [*rounds.values()] == [1] * MAX_OWN + [MAX_ROUNDS] * 2


def test_a_sequence_that_gets_on_may_spend_any_number_of_lexers(idle: MaskWorker):
    """Those that share one bring it to its end together, again and again in a long answer."""
    vocabulary, grammar = GrammarVocabulary(TEXT, TEXT.vocab_size, (EOS,)), Grammar(GrammarKind.REGEX, "z*")
    row = Row(Start(1, 1, "", Constraint(grammar), (), 1), SharedLexer(is_again=True), idle._find)
    row.lexer.compiled = CompiledGrammar.compile(grammar, vocabulary)
    assert idle._begin(row) is None
    for _ in range(2 * MAX_ROUNDS):
        row.num_rounds += 1
        took = idle._take(row, Take(1, 1, (Z,)))
        assert took is not None and took.failure is None and row.num_rounds == 0
