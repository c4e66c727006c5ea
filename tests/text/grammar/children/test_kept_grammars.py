"""Compiled grammars that are kept: as far as there is room, and none where they have grown."""

from __future__ import annotations

from typing import Any, cast

import pytest

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.children import kept_grammars
from app.text.grammar.children.kept_grammars import (
    LOOK_S,
    MAX_GROWTH_BYTES,
    MAX_OWN,
    MAX_SPENT,
    KeptGrammars,
)
from app.text.grammar.children.shared_lexer import SharedLexer
from app.text.grammar.compiled import MAX_AGAIN, CompiledGrammar
from app.text.grammar.grammar_sizes import MAX_BYTES

A, B, C = (Grammar(GrammarKind.REGEX, letter) for letter in "abc")


def test_those_are_kept_that_were_used_last():
    kept = KeptGrammars()
    first, second, third = (kept.lexer(grammar) for grammar in (A, B, C))
    kept.keep(A, first, MAX_BYTES // 2)
    kept.keep(B, second, MAX_BYTES // 2)
    assert kept.lexer(A) is first
    kept.keep(C, third, 1)
    assert kept.lexer(A) is first and kept.lexer(C) is third
    assert kept.lexer(B) is not second, "one that is compiled again has a lexer of its own"


def test_one_is_kept_however_large_it_is():
    kept = KeptGrammars()
    only = kept.lexer(A)
    kept.keep(A, only, 2 * MAX_BYTES)
    assert kept.lexer(A) is only


def test_one_that_is_not_compiled_takes_no_room():
    kept = KeptGrammars()
    first, rejected = kept.lexer(A), kept.lexer(B)
    kept.drop(B, rejected)
    assert kept.lexer(A) is first and kept.lexer(B) is not rejected
    kept.keep(A, first, MAX_BYTES)
    assert kept.lexer(A) is first


def test_what_is_not_kept_any_more_replaces_nothing():
    kept = KeptGrammars()
    own, only = SharedLexer(is_again=True), kept.lexer(A)
    kept.keep(A, only, MAX_BYTES)
    kept.keep(A, own, MAX_BYTES)
    kept.drop(A, own)
    assert kept.lexer(A) is only
    kept.keep(B, kept.lexer(B), 1)
    assert kept.lexer(A) is not only, "its room was counted once, so one more was too much"


def test_a_spent_lexer_is_replaced_and_its_room_is_free():
    kept = KeptGrammars()
    first, other = kept.lexer(A), kept.lexer(B)
    first.compiled = CompiledGrammar(cast(Any, None))
    kept.keep(A, first, MAX_BYTES)
    assert kept.lexer(A) is first
    first.compiled.is_spent = True
    second = kept.lexer(A)
    assert second is not first and second.compiled is None and kept.lexer(A) is second
    kept.keep(A, second, MAX_BYTES // 2)
    kept.keep(B, other, MAX_BYTES // 2)
    assert kept.lexer(A) is second and kept.lexer(B) is other


def test_only_so_many_sequences_begin_again_with_one_lexer():
    kept = KeptGrammars()
    first = kept.lexer(A)
    first.compiled = CompiledGrammar(cast(Any, None))
    first.compiled.is_spent = True
    second = kept.lexer_again(A, 0)
    assert second.is_again
    assert all(kept.lexer_again(A, 1) is second for _ in range(MAX_AGAIN - 1))
    assert all(kept.lexer(A) is second for _ in range(2 * MAX_AGAIN)), "of those that begin for the first time"
    third = kept.lexer_again(A, 1)
    assert third is not second and third.is_again


def test_who_has_spent_several_lexers_gets_one_that_nobody_shares():
    """Or those that begin before it on the next one would begin again with it for ever."""
    kept = KeptGrammars()
    shared = kept.lexer_again(A, MAX_SPENT - 1)
    own = [kept.lexer_again(A, MAX_SPENT) for _ in range(2)]
    assert own[0] is not own[1] and shared not in own and all(each.is_again for each in own)
    assert kept.lexer_again(A, 0) is shared


def test_few_have_a_lexer_of_their_own_at_the_same_time():
    """Each takes memory, and the process has a limit."""
    kept = KeptGrammars()
    shared = kept.lexer_again(A, 0)
    own = [kept.lexer_again(A, MAX_SPENT) for _ in range(MAX_OWN)]
    assert shared not in own and kept.lexer_again(A, MAX_SPENT) is shared
    own.pop()
    assert kept.lexer_again(A, MAX_SPENT) is not shared, "one has ended"


def test_all_are_dropped_where_the_process_has_grown():
    now, num_bytes = 0.0, 100
    kept = KeptGrammars(lambda: now, lambda: num_bytes)
    only = kept.lexer(A)
    kept.keep(A, only, 1)
    num_bytes += MAX_GROWTH_BYTES + 1
    assert not kept.shrink()
    assert kept.lexer(A) is only, "it does not look that often"
    now += LOOK_S
    assert kept.shrink(), "it has not helped"
    assert kept.lexer(A) is not only
    only, num_bytes = kept.lexer(A), 100 + MAX_GROWTH_BYTES
    kept.keep(A, only, 1)
    now += LOOK_S
    assert not kept.shrink()
    assert kept.lexer(A) is only


def test_what_is_free_goes_back_before_anything_is_dropped(monkeypatch: pytest.MonkeyPatch):
    now, num_bytes = 0.0, 0

    def trim() -> None:
        nonlocal num_bytes
        num_bytes = MAX_GROWTH_BYTES

    monkeypatch.setattr(kept_grammars, "trim_heap", trim)
    kept = KeptGrammars(lambda: now, lambda: num_bytes)
    only, num_bytes = kept.lexer(A), 2 * MAX_GROWTH_BYTES
    now += LOOK_S
    kept.shrink()
    assert num_bytes == MAX_GROWTH_BYTES and kept.lexer(A) is only


def test_what_is_free_goes_back_however_little_it_is(monkeypatch: pytest.MonkeyPatch):
    """Else each busiest moment would leave a little for good."""
    num_trims = 0

    def trim() -> None:
        nonlocal num_trims
        num_trims += 1

    monkeypatch.setattr(kept_grammars, "trim_heap", trim)
    times = iter([0, LOOK_S - 1, LOOK_S, 2 * LOOK_S - 1, 2 * LOOK_S])
    kept = KeptGrammars(lambda: next(times), lambda: 100)
    counts = []
    for _ in range(4):
        kept.shrink()
        counts.append(num_trims)
    assert counts == [0, 1, 1, 2]
