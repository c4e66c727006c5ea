"""Reasoning between marks of several tokens, as a part of a grammar: however its text is cut into tokens."""

import llguidance
import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind
from app.text.answer.reasoning import STYLES
from app.text.answer.reasoning_rules import block_rules
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from tests.text.toys import toy

TEXT, BACKEND = toy("byte_level")
VOCABULARY = GrammarVocabulary(TEXT, TEXT.vocab_size, [1])
SEED = STYLES["seed"]  # of its marks none is a token of the toy
ANSWER = '{"a":1}'
SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
OUTSIDE = [
    (ANSWER, True),
    (f"\n{ANSWER}", True),
    (f"<seed:think>Hm.</seed:think>{ANSWER}", True),
    (f"<seed:think></seed:think>\n\n{ANSWER}", True),
    (f"<seed:think>a < b </seed:thin {ANSWER} é🙂\n\n</seed:think>\n{ANSWER}", True),
    (f"<seed:think>Hm.</seed:think>\n\n\n{ANSWER}", False),
    ("<seed:think>Hm.</seed:think>no", False),
    (f"Hm.</seed:think>{ANSWER}", False),
    (f"<seed:think>Hm.</seed:think>{ANSWER}<seed:think>", False),
    ("<seed:think>Hm.", None),
    ("<seed:think>Hm.</seed:think>\n", None),
]
INSIDE = [
    (f"Hm.</seed:think>{ANSWER}", True),
    (f"</seed:think> {ANSWER}", True),
    (f"<seed:think>Hm.</seed:think>{ANSWER}", True),
    (ANSWER, None),
]


def block(*, is_inside: bool) -> str:
    return block_rules(SEED, TEXT.special_tokens, is_inside=is_inside)


def verdict(grammar: Grammar, token_ids: list[int]) -> bool | None:
    """Whether tokens satisfy a grammar; None if they begin what does."""
    matcher = compile_grammar(grammar, VOCABULARY)
    if matcher.validate_tokens(token_ids) != len(token_ids) or not matcher.consume_tokens(token_ids):
        return False
    return True if matcher.is_accepting() else None


@pytest.mark.parametrize("kind", ["json_schema", "calls", "regex", "choice"])
@pytest.mark.parametrize(
    ("is_inside", "text", "expected"),
    [(False, *case) for case in OUTSIDE] + [(True, *case) for case in INSIDE],
)
def test_the_answer_behind_a_block_satisfies_the_grammar(kind: str, is_inside: bool, text: str, expected: bool | None):
    source = {
        "json_schema": SCHEMA,
        "calls": f"start: %json {SCHEMA}",
        "regex": r'\{"a":1\}',
        "choice": r'["{\"a\":1}", "yes"]',
    }[kind]
    grammar = Grammar(GrammarKind(kind), source, follows_reasoning=True, block=block(is_inside=is_inside))
    assert verdict(grammar, TEXT.encode(text, add_special_tokens=False)) is expected
    single = [TEXT.encode(char, add_special_tokens=False) for char in text]
    assert verdict(grammar, [token_id for ids in single for token_id in ids]) is expected


def test_the_end_of_the_answer_is_impossible_inside():
    grammar = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA, follows_reasoning=True, block=block(is_inside=True))
    matcher = compile_grammar(grammar, VOCABULARY)
    matcher.consume_tokens(TEXT.encode("Hm. ", add_special_tokens=False))
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    assert not mask >> 1 & 1 and mask.bit_count() > 200


def test_special_tokens_in_marks_are_tokens():
    """As in Gemma 4: its opening mark is a special token and a text, its closing mark a special token."""
    special = {"<|channel>": 2, "<channel|>": 3, "": 4}
    rules = block_rules(STYLES["gemma"], special, is_inside=False)
    assert rules == 'block: (<[2]> "thought\\n" inside)?\ninside: /(?s:.*)/ <[3]>\n'
    source = f"start: block\n{rules}"
    assert not llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(source))


def test_a_grammar_that_nothing_satisfies_is_rejected_behind_a_block_too():
    grammar = Grammar(GrammarKind.REGEX, r"[^\s\S]", follows_reasoning=True, block=block(is_inside=True))
    with pytest.raises(InvalidValue, match="No text satisfies"):
        compile_grammar(grammar, VOCABULARY)
