"""Pieces of Lark, read by the grammar library itself."""

from __future__ import annotations

import re

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.compile import compile_grammar
from app.text.grammar.lark_text import containing, of_length, quoted, several, whole, without, without_pair
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text.toys import toy

SAMPLES = (
    "",
    "a",
    "b",
    "ab",
    "xabx",
    "a/b",
    "$",
    "a$",
    "^a",
    "a|b",
    "\n",
    "a\nb",
    "\\\\",
    "[x]",
    "</v>",
    "é猫",
    "(a)",
    "\x7f",
)


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    text, _ = toy("byte_level")
    return GrammarVocabulary(text, text.vocab_size, [1])


def accepts(vocabulary: GrammarVocabulary, rule: str, text: str) -> bool:
    """Whether a text without exclamation marks satisfies a rule."""
    matcher = compile_grammar(Grammar(GrammarKind.LARK, f'start: one\none[suffix="!"]: {rule}'), vocabulary)
    token_ids = vocabulary.backend.tokenize_str(f"{text}!")
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("pattern", "as_python"),
    [
        ("a", "a"),
        ("^a", "^a"),
        ("a$", r"a\Z"),
        ("^a$", r"^a\Z"),
        ("^a|b$", r"^a|b\Z"),
        ("a|^b", "a|^b"),
        ("^(a|b)$", r"^(a|b)\Z"),
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        (r"\$", r"\$"),
        (r"^a\$$", r"^a\$\Z"),
        (r"\\$", r"\\\Z"),
        ("[|$]", "[|$]"),
        (r"[\]|]", r"[\]|]"),
        ("[]|x]", "[]|x]"),
        ("[^]|x]", "[^]|x]"),
        ("[a[|]]|x", "[a|]|x"),
        ("a\nb", "a\nb"),
        ("^$", r"^\Z"),
        ("(?i)A", "(?i)A"),
        ("", ""),
    ],
)
def test_a_pattern_is_found_where_re_finds_it(pattern: str, as_python: str, vocabulary: GrammarVocabulary):
    found = [sample for sample in SAMPLES if accepts(vocabulary, containing(pattern), sample)]
    assert found == [sample for sample in SAMPLES if re.search(as_python, sample)]


@pytest.mark.parametrize("pattern", ["(^a)", "a^", "(?=a)b", "(", "a\\", "*", "a)|(b", "(a", "[a"])
def test_patterns_that_cannot_be_checked_are_rejected(pattern: str, vocabulary: GrammarVocabulary):
    with pytest.raises(InvalidValue):
        accepts(vocabulary, containing(pattern), "a")


def test_other_pieces(vocabulary: GrammarVocabulary):
    for sample in SAMPLES:
        assert accepts(vocabulary, quoted(sample), sample), sample
        assert accepts(vocabulary, whole("a/?b|é猫"), sample) == (sample in ("ab", "a/b", "é猫"))
        assert accepts(vocabulary, without("a"), sample) == ("a" not in sample)
        assert accepts(vocabulary, without("</v>"), sample) == (sample != "</v>")
        assert accepts(vocabulary, without_pair("<", "/"), sample) == ("</" not in sample)
        assert accepts(vocabulary, without_pair("[", "^"), sample) == ("[^" not in sample)
        assert accepts(vocabulary, of_length(1, 2), sample) == (1 <= len(sample) <= 2)
        assert accepts(vocabulary, of_length(3, None), sample) == (len(sample) >= 3)
    assert several("a", "b", True) == "a (b a)*"
    assert several("a", "b", False) == "a"
