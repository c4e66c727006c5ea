"""The vocabulary for grammars has the detokenizer's bytes, for every kind of tokenizer that can have grammars."""

from __future__ import annotations

import json

import llguidance
import pytest
import tokenizers

from app.contract.errors import UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import MAX_FORCED_CHARS, SLICES, GrammarVocabulary, mask_words
from app.text.tokens.tokenizer import Tokenizer
from tests.text import toys


def _schema(source: str) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(source)


def walk(matcher: llguidance.LLMatcher, text: Tokenizer) -> bytes:
    """Return the answer that the first token of each mask makes."""
    found = b""
    while not matcher.is_accepting():
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        token_id = (mask & -mask).bit_length() - 1
        assert matcher.consume_token(token_id) and not matcher.is_error()
        found += text.token_bytes(token_id)
    return found


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_all_tokens_have_the_detokenizers_bytes(kind: str):
    text, _ = toys.toy(kind)
    assert text.eos_token_id is not None
    found = GrammarVocabulary(text, text.vocab_size, [text.eos_token_id]).backend
    special = set(text.special_tokens.values())
    for token_id in range(text.vocab_size):
        ours = text.token_bytes(token_id)
        if token_id not in special and not found.is_special_token(token_id):
            assert found.decode_bytes([token_id]) == ours, token_id


def test_byte_level_tokens_are_those_that_the_library_reads_itself():
    """It is not given the file of such a tokenizer, which it would parse once more. Added tokens that are not special
    differ: the library makes them special."""
    text, _ = toys.toy("byte_level")
    think = text.token_id("<think>")
    size = text.vocab_size + 40
    found = GrammarVocabulary(text, size, [1])
    read = llguidance.LLTokenizer(text._backend.to_str(), n_vocab=size + 1, eos_token=[1], slices=list(SLICES))
    assert found.backend.is_canonical and read.is_canonical
    for token_id in range(text.vocab_size):
        assert found.backend.decode_bytes([token_id]) == read.decode_bytes([token_id])
        is_special = read.is_special_token(token_id) and token_id != think
        assert found.backend.is_special_token(token_id) == is_special, token_id
    for sample in (*toys.CORPUS, "", " a", "a\n"):
        assert found.backend.tokenize_str(sample) == read.tokenize_str(sample)
        assert found.backend.tokenize_bytes(sample.encode()[:-1]) == read.tokenize_bytes(sample.encode()[:-1])
    answer = '{"the dog": "sleeps 你", "quick": [1, 2]}'
    for source in ('{"type": "object"}', '{"required": ["the dog"], "properties": {"the dog": {"type": "string"}}}'):
        matchers = [llguidance.LLMatcher(backend, _schema(source), log_level=0) for backend in (found.backend, read)]
        for token_id in text.encode(answer, add_special_tokens=False):
            ours, theirs = (matcher.compute_bitmask() for matcher in matchers)
            assert _without(ours, think) == _without(theirs, think)
            assert [matcher.consume_token(token_id) for matcher in matchers] == [True, True]


@pytest.mark.parametrize("length", [1, 3, 9, 10, 11, 19, 20, 21, 40])
def test_slices_change_no_mask(length: int):
    """They save time where many tokens are allowed together: at each length that is left."""
    text, _ = toys.toy("byte_level")
    sliced = GrammarVocabulary(text, text.vocab_size, [1]).backend
    source = _schema(json.dumps({"type": "string", "maxLength": length}))
    matchers = [llguidance.LLMatcher(backend, source, log_level=0) for backend in (sliced, sliced.with_slices([]))]
    answer = json.dumps("the quick brown fox jumps over the lazy dogs"[:length])
    for token_id in text.encode(answer, add_special_tokens=False):
        masks = [matcher.compute_bitmask() for matcher in matchers]
        assert masks[0] == masks[1] and any(masks[0])
        assert [matcher.consume_token(token_id) for matcher in matchers] == [True, True]


def _without(mask: bytes, token_id: int) -> int:
    return int.from_bytes(mask, "little") & ~(1 << token_id)


def allows(matcher: llguidance.LLMatcher, token_id: int) -> bool:
    """Whether a token may come next."""
    return bool(int.from_bytes(matcher.compute_bitmask(), "little") >> token_id & 1)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.CHOICE, '["<think> x"]'),
        (GrammarKind.REGEX, "(?s:.*)"),
        (GrammarKind.REGEX, "<[a-z]+> x"),
        (GrammarKind.LARK, 'start: text " x"\ntext[suffix="<think>"]: /(?s:.*)/'),
    ],
)
def test_added_tokens_that_are_not_special_are_text_of_a_grammar(kind: GrammarKind, source: str):
    """Such as `<tool_call>` of Qwen: their text is part of an answer."""
    text, _ = toys.toy("byte_level")
    matcher = compile_grammar(Grammar(kind, source), GrammarVocabulary(text, text.vocab_size, [1]))
    token_ids = text.encode("<think> x", add_special_tokens=False)
    assert token_ids[0] == text.token_id("<think>")
    assert allows(matcher, token_ids[0])
    assert matcher.consume_tokens(token_ids) and matcher.is_accepting()


def test_added_tokens_that_are_not_special_may_stand_in_strings():
    text, _ = toys.toy("byte_level")
    matcher = compile_grammar(
        Grammar(GrammarKind.JSON_SCHEMA, '{"type":"string"}'), GrammarVocabulary(text, text.vocab_size, [1])
    )
    assert matcher.consume_tokens(text.encode('"a', add_special_tokens=False))
    assert allows(matcher, text.token_id("<think>"))
    assert not any(allows(matcher, token_id) for token_id in text.special_tokens.values())


def test_a_text_that_must_come_has_the_tokens_that_prompts_have():
    text, _ = toys.toy("byte_level")
    vocabulary = GrammarVocabulary(text, text.vocab_size, [1])
    matcher = compile_grammar(Grammar(GrammarKind.CHOICE, '["the <think> dog"]'), vocabulary)
    assert matcher.compute_ff_tokens() == text.encode("the <think> dog", add_special_tokens=False)


def test_the_tokens_that_end_an_answer_are_no_text_even_if_they_are_not_special():
    text, _ = toys.toy("byte_level")
    end = text.token_id("<think>")
    matcher = compile_grammar(Grammar(GrammarKind.REGEX, "(?s:.{2,})"), GrammarVocabulary(text, text.vocab_size, [end]))
    assert not allows(matcher, end)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("answer", ["You are the", "true", " the dog"])
def test_the_masks_lead_to_an_answer_that_the_grammar_prescribes(kind: str, answer: str):
    """Also where the tokenizer begins every text with a space, which the answer may not have."""
    text, _ = toys.toy(kind)
    assert text.eos_token_id is not None
    vocabulary = GrammarVocabulary(text, text.vocab_size, [text.eos_token_id])
    matcher = compile_grammar(Grammar(GrammarKind.CHOICE, json.dumps([answer])), vocabulary)
    assert walk(matcher, text) == answer.encode()


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_the_texts_of_special_tokens_may_be_part_of_an_answer(kind: str):
    text, _ = toys.toy(kind)
    vocabulary = GrammarVocabulary(text, text.vocab_size, [1])
    for special in text.special_tokens:
        answer = f"say {special} now"
        if any(text.token_id(character) is None for character in answer.replace(" ", "")):
            continue  # a vocabulary without one of the characters
        matcher = compile_grammar(Grammar(GrammarKind.CHOICE, json.dumps([answer])), vocabulary)
        assert walk(matcher, text) == answer.encode()


def test_a_long_text_that_must_come_is_told_in_parts():
    text, _ = toys.toy("byte_level")
    vocabulary = GrammarVocabulary(text, text.vocab_size, [1])
    answer = "the quick brown fox jumps over " * 300
    assert len(answer) > 2 * MAX_FORCED_CHARS
    matcher = compile_grammar(Grammar(GrammarKind.REGEX, answer), vocabulary)
    assert 0 < len(matcher.compute_ff_tokens()) < MAX_FORCED_CHARS
    found = []
    while not matcher.is_accepting():
        forced = matcher.compute_ff_tokens()
        assert forced and matcher.consume_tokens(forced)
        found += forced
    assert b"".join(map(text.token_bytes, found)) == answer.encode()


@pytest.mark.parametrize("longest", [64, 128, 256])
@pytest.mark.parametrize("answer", ["-" * 130, "-" * 1000, "say " + "-" * 140, "-" * 300 + "a" + "-" * 300])
def test_a_long_text_that_must_come_may_be_few_tokens(longest: int, answer: str):
    """As 128 spaces or dashes are in vocabularies of large models."""
    text = _with_runs(longest)
    matcher = compile_grammar(Grammar(GrammarKind.REGEX, answer), GrammarVocabulary(text, text.vocab_size, [1]))
    assert walk(matcher, text) == answer.encode()


def _with_runs(longest: int) -> Tokenizer:
    """A tokenizer with tokens of 2, 4, ... `longest` dashes."""
    runs = ["-" * 2**power for power in range(longest.bit_length())]
    vocabulary = {piece: number for number, piece in enumerate([*"<>says ", *runs])}
    merges = [(run, run) for run in runs[:-1]]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(backend, {})


def test_a_tokenizer_whose_texts_depend_on_neighbours_has_no_grammars():
    text, _ = toys.toy("word_pieces")
    with pytest.raises(UnsupportedParameter, match="depends on its neighbours"):
        GrammarVocabulary(text, text.vocab_size, [1])


@pytest.mark.parametrize("padding", [-7, 0, 5, 64])
def test_the_size_is_that_of_the_model(padding: int):
    text, _ = toys.toy("byte_level")
    size = text.vocab_size + padding
    found = GrammarVocabulary(text, size, [1])
    mask = compile_grammar(Grammar(GrammarKind.REGEX, "(.|\n)*"), found).compute_bitmask()
    assert len(mask) == 4 * mask_words(size)


def test_a_model_without_an_end_ends_with_its_grammar():
    text, _ = toys.toy("byte_level")
    matcher = compile_grammar(Grammar(GrammarKind.CHOICE, '["a"]'), GrammarVocabulary(text, text.vocab_size, []))
    assert matcher.consume_tokens(text.encode("a", add_special_tokens=False))
    assert matcher.is_stopped() and not matcher.is_error()
