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


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> CompiledGrammar:
    """A grammar whose lexer is spent after a few letters."""
    monkeypatch.setitem(compile.LIMITS, "max_lexer_states", 120)
    return CompiledGrammar(compile.compile_grammar(Grammar(GrammarKind.REGEX, "(.*a.{10})+X"), VOCABULARY))


def spend(compiled: CompiledGrammar):
    """A matcher that is at the end of the lexer."""
    matcher = compiled.matcher()
    while not matcher.is_error():
        matcher.compute_bitmask()
        matcher.consume_token(A)
    return matcher


def test_an_error_of_its_own_fails_a_sequence_at_once():
    abc = CompiledGrammar(compile.compile_grammar(Grammar(GrammarKind.CHOICE, '["ab"]'), VOCABULARY))
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


def test_who_has_spent_it_alone_begins_again_once(compiled: CompiledGrammar):
    """What it has done before has filled the lexer, too; its tokens and one mask need not."""
    spender = spend(compiled)
    assert compiled.failure_of(spender, is_new=False) is None
    failure = compiled.failure_of(spender, is_new=True)
    assert failure is not None and "too complex" in failure


def test_the_library_says_in_its_words_that_a_lexer_is_spent(compiled: CompiledGrammar):
    other, spender = compiled.matcher(), spend(compiled)
    assert spender.get_error().startswith(SPENT)
    assert other.validate_tokens([A]) == 0 and not other.is_error(), "not all calls say so"
    other.consume_token(A)
    assert other.get_error().startswith(SPENT)
