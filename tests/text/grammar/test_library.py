"""What the grammar library does that this server builds on: an update that changes it fails here."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import llguidance
import numpy as np
import pytest

from app.text.grammar.vocabulary import GrammarVocabulary, mask_words
from tests.text import toys

VOCAB_SIZE, EOS = toys.toy("byte_level")[0].vocab_size + 40, 1


@cache
def vocabulary() -> GrammarVocabulary:
    """A vocabulary of a byte-level tokenizer, with padding ids."""
    return GrammarVocabulary(toys.toy("byte_level")[0], VOCAB_SIZE, [EOS])


def matcher(lark: str, **limits: Any) -> llguidance.LLMatcher:
    """A matcher of a grammar in Lark."""
    return llguidance.LLMatcher(
        vocabulary().backend,
        llguidance.LLMatcher.grammar_from_lark(lark),
        log_level=0,
        limits=llguidance.LLParserLimits(**limits),
    )


def allowed(mask: bytes) -> list[int]:
    """The ids of the tokens that a mask allows."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


def ids(text: str) -> list[int]:
    """The tokens of a text, byte by byte."""
    found = toys.toy("byte_level")[0]
    return [token_id for byte in text for token_id in found.encode(byte, add_special_tokens=False)]


def test_a_bad_grammar_does_not_raise():
    made = matcher("start: nothing")
    assert made.is_error() and "unknown name" in made.get_error()


def test_an_error_looks_like_an_end():
    made = matcher('start: "ab"')
    assert not made.consume_token(ids("b")[0])
    assert made.is_error() and made.is_stopped() and allowed(made.compute_bitmask()) == [EOS]


def test_a_complete_grammar_is_stopped_without_error():
    made = matcher('start: "ab"')
    assert made.consume_tokens(ids("ab"))
    assert made.is_stopped() and made.is_accepting() and not made.is_error()


def test_a_grammar_of_nothing_compiles_and_its_first_mask_is_the_error():
    made = matcher(r"start: /[^\s\S]/")
    assert not made.is_error()
    made.compute_bitmask()
    assert made.is_error()


def test_a_copy_goes_its_own_way():
    made = matcher('start: "ab" | "cd"')
    made.compute_bitmask()
    other = made.deep_copy()
    assert made.consume_token(ids("a")[0]) and other.consume_token(ids("c")[0])
    assert allowed(made.compute_bitmask()) != allowed(other.compute_bitmask())


def test_masks_have_a_fixed_number_of_words():
    words = mask_words(VOCAB_SIZE)
    assert len(matcher('start: "a"').compute_bitmask()) == 4 * words
    memory = np.zeros((2, words + 1), np.uint32)
    executor = llguidance.LLExecutor(1)
    with pytest.raises(ValueError, match="buffer size"):
        executor.unsafe_compute_mask_ptr([(matcher('start: "a"'), 0)], memory.ctypes.data, 4 * (words + 1), 2)


def test_drafts_get_a_mask_each_and_rows_after_a_forbidden_one_are_untouched():
    made = matcher('start: "abc"')
    words, untouched = mask_words(VOCAB_SIZE), 0xABCDEF
    memory = np.full((5, words), untouched, np.uint32)
    draft = [*ids("a"), *ids("x"), *ids("c")]
    llguidance.LLExecutor(1).unsafe_compute_mask_ptr_with_draft_token(
        [(made, 1, draft)], memory.ctypes.data, 4 * words, 5
    )
    assert made.validate_tokens(draft) == 1
    assert ids("a")[0] in allowed(memory[1].tobytes()) and ids("b")[0] in allowed(memory[2].tobytes())
    assert (memory[[0, 3, 4]] == untouched).all()
    with pytest.raises(ValueError, match="empty"):
        llguidance.LLExecutor(1).unsafe_compute_mask_ptr_with_draft_token(
            [(made, 1, [])], memory.ctypes.data, 4 * words, 5
        )


def test_after_a_draft_that_completes_the_grammar_only_the_end_is_allowed():
    made = matcher('start: "ab"')
    words = mask_words(VOCAB_SIZE)
    memory = np.zeros((4, words), np.uint32)
    llguidance.LLExecutor(1).unsafe_compute_mask_ptr_with_draft_token(
        [(made, 0, ids("ab"))], memory.ctypes.data, 4 * words, 4
    )
    assert allowed(memory[2].tobytes()) == [EOS]
    assert not made.is_stopped(), "the matcher has consumed the draft"


def test_padding_and_special_tokens_are_never_allowed():
    found = allowed(matcher(r"start: /(.|\n)*/").compute_bitmask())
    special = set(toys.toy("byte_level")[0].special_tokens.values()) - {EOS}
    assert not special & set(found) and max(found) < toys.toy("byte_level")[0].vocab_size


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_forced_tokens_are_certain(kind: str):
    """A mask that is computed without asking first allows them alone, one after the other."""
    text, _ = toys.toy(kind)
    backend = GrammarVocabulary(text, text.vocab_size, [EOS]).backend
    lark = r'start: "You are " /[a-z]+/ "." ("{\"name\": \"" /[a-z]{1,3}/ "\"}" | " That is all.")'
    asked, unasked = (
        llguidance.LLMatcher(backend, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0) for _ in range(2)
    )
    num_forced, rng = 0, random.Random(1)
    while not asked.is_stopped():
        forced = asked.compute_ff_tokens()
        num_forced += len(forced)
        for token_id in forced:
            assert allowed(unasked.compute_bitmask()) == [token_id]
            assert asked.consume_token(token_id) and unasked.consume_token(token_id)
        if not asked.is_stopped():
            choices = allowed(unasked.compute_bitmask())
            assert len(choices) > 1 and asked.compute_bitmask() == unasked.compute_bitmask()
            token_id = rng.choice(choices)
            assert asked.consume_token(token_id) and unasked.consume_token(token_id)
    assert num_forced > 5 and not asked.is_error()


def test_limits_end_a_grammar_with_an_error():
    made = matcher('start: a\na: a a | "x"', max_items_in_row=300)
    for _ in range(400):
        if not made.consume_token(ids("x")[0]):
            break
        made.compute_bitmask()
    assert made.is_error() and "ParserTooComplex" in made.get_error()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "foo"}, "foo"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"$ref": "http://example.com/x"}, "example.com"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "minimum"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "oneOf"),
    ],
    ids=str,
)
def test_schemas_that_the_library_refuses(schema: dict, words: str):
    source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    made = llguidance.LLMatcher(vocabulary().backend, source, log_level=0)
    assert made.is_error() and words in made.get_error()
