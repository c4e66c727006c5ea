"""Compiled grammars that are kept: as far as there is room, and none where they have grown."""

from __future__ import annotations

from typing import Any

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.children.kept_grammars import LOOK_S, MAX_GROWTH_BYTES, KeptGrammars
from app.text.grammar.grammar_sizes import MAX_BYTES

A, B, C = (Grammar(GrammarKind.REGEX, letter) for letter in "abc")


def prototype() -> Any:
    return object()


def test_those_are_kept_that_were_used_last():
    kept = KeptGrammars()
    first, second, third = prototype(), prototype(), prototype()
    lexer = kept.lexer(B)
    kept.keep(A, first, MAX_BYTES // 2)
    kept.keep(B, second, MAX_BYTES // 2)
    assert kept.get(A) is first
    kept.keep(C, third, 1)
    assert kept.get(A) is first and kept.get(B) is None and kept.get(C) is third
    assert kept.lexer(B) is not lexer, "one that is compiled again has a lexer of its own"


def test_one_is_kept_however_large_it_is():
    kept, only = KeptGrammars(), prototype()
    kept.keep(A, only, 2 * MAX_BYTES)
    assert kept.get(A) is only


def test_all_are_dropped_where_the_process_has_grown():
    now, num_bytes = 0.0, 100
    kept, only = KeptGrammars(lambda: now, lambda: num_bytes), prototype()
    kept.keep(A, only, 1)
    lexer = kept.lexer(A)
    num_bytes += MAX_GROWTH_BYTES + 1
    kept.drop_grown()
    assert kept.get(A) is only, "it does not look that often"
    now += LOOK_S
    kept.drop_grown()
    assert kept.get(A) is None and kept.lexer(A) is not lexer
    num_bytes = 100 + MAX_GROWTH_BYTES
    kept.keep(A, only, 1)
    now += LOOK_S
    kept.drop_grown()
    assert kept.get(A) is only
