"""What a limit of a lexer that matchers share means for each of their sequences."""

from __future__ import annotations

import pytest

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar import compile
from app.text.grammar.compiled import SPENT, CompiledGrammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text import toys

TEXT, _ = toys.toy("byte_level")
VOCABULARY = GrammarVocabulary(TEXT, TEXT.vocab_size, (1,))
A, B, X = (TEXT.encode(letter, add_special_tokens=False)[0] for letter in "abx")


MANY = Grammar(GrammarKind.REGEX, "(.*a.{10})+X")


@pytest.fixture(autouse=True)
def few_states(monkeypatch: pytest.MonkeyPatch):
    """A lexer is spent after a few letters."""
    monkeypatch.setitem(compile.LIMITS, "max_lexer_states", 120)


@pytest.fixture
def compiled() -> CompiledGrammar:
    return CompiledGrammar.compile(MANY, VOCABULARY)


@pytest.fixture
def again() -> CompiledGrammar:
    return CompiledGrammar.compile(MANY, VOCABULARY, is_again=True)


def spend(compiled: CompiledGrammar):
    """A matcher that is at the end of the lexer."""
    matcher = compiled.matcher()
    while not matcher.is_error():
        matcher.compute_bitmask()
        matcher.consume_token(A)
    return matcher


def test_an_error_of_its_own_fails_a_sequence_at_once():
    abc = CompiledGrammar.compile(Grammar(GrammarKind.CHOICE, '["ab"]'), VOCABULARY)
    matcher = abc.matcher()
    matcher.consume_token(X)
    failure = abc.failure_of(matcher, is_new=False)
    assert failure is not None and not abc.is_spent
    other = abc.matcher()
    assert other.consume_token(A) and other.consume_token(B)


def test_who_meets_a_spent_lexer_begins_again(compiled: CompiledGrammar):
    other, spender = compiled.matcher(), spend(compiled)
    assert not compiled.is_spent, "nobody has said so"
    assert compiled.failure_of(spender, is_new=True) is None and compiled.is_spent
    assert not other.consume_token(A) and compiled.failure_of(other, is_new=False) is None


def test_who_has_spent_one_alone_by_all_that_it_has_done_begins_again(again: CompiledGrammar):
    """Its tokens and one mask need not."""
    assert again.failure_of(spend(again), is_new=False) is None and again.is_spent


def test_who_has_spent_one_alone_when_it_began_again_fails(again: CompiledGrammar):
    failure = again.failure_of(spend(again), is_new=True)
    assert failure is not None and "too complex" in failure


def test_who_has_begun_again_beside_others_begins_again_once_more(again: CompiledGrammar):
    again.matcher()
    assert again.failure_of(spend(again), is_new=True) is None


def test_the_library_says_in_its_words_that_a_lexer_is_spent(compiled: CompiledGrammar):
    other, spender = compiled.matcher(), spend(compiled)
    assert spender.get_error().startswith(SPENT)
    assert other.validate_tokens([A]) == 0 and not other.is_error(), "not all calls say so"
    other.consume_token(A)
    assert other.get_error().startswith(SPENT)
