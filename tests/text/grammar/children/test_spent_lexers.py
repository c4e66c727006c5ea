"""Sequences whose grammar has come to a limit of the library, in the process that finds masks."""

from __future__ import annotations

import random

import numpy as np

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.text.grammar.children.mask_messages import (
    Draft,
    Drafted,
    Take,
)
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text.grammar.children.mask_process import EOS, QUOTE, TEXT, Worker, Z, costly
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
