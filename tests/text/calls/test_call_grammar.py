"""Grammars of calls, by the grammar library itself: they accept what the families write, and nothing else."""

import json
import re

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from app.contract.grammar import Grammar, GrammarKind
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import FORMATS, CallFormat
from app.text.calls.tool_schemas import ToolSchemas, Unwritable
from app.text.grammar.compile import compile_grammar
from app.text.grammar.vocabulary import GrammarVocabulary
from app.text.reading.answer_events import Arguments
from app.text.tokens.tokenizer import Tokenizer
from tests.cases import examples
from tests.text.answer.answers import TOOLS, WRITERS, Call, calls_of, parse, text_of
from tests.text.toys import byte_level, toy

CALLS: list[Call] = [("search", {"text": "hi there", "count": 3}), ("a_1", {"is_new": True})]
TEMPLATES = {"json_list": "<TOOLCALL></TOOLCALL>"}
STRICT = [{"function": {"name": "pick", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "n": {"$ref": "#/$defs/n"}}, "required": ["unit"],
    "additionalProperties": False, "$defs": {"n": {"type": "integer", "minimum": 0}}}}}]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary():
    return llguidance.LLTokenizer(toy("byte_level")[1].to_str())


def row_of(name: str) -> CallFormat:
    return FORMATS[name].narrowed(TEMPLATES.get(name, "<tool_call></tool_call>"))


def written(name: str, calls: list[Call]) -> str:
    """The calls as the grammar has them: without ids, and without blanks around them."""
    text = WRITERS[name](calls[:1] if name == "deepseek" else calls).strip()
    text = text.replace("[CALL_ID]abcdefghi", "").removeprefix("<|python_tag|>").removeprefix("<|assistant|>")
    return text.removeprefix("<|python_start|>").removesuffix("<|python_end|>")


def accepts(vocabulary: llguidance.LLTokenizer, grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    parts = re.split("(?<=<)", text)  # so that no mark is one of the vocabulary's special tokens
    token_ids = [token_id for part in parts for token_id in vocabulary.tokenize_str(part)]
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", WRITERS)
def test_required_calls_are_what_the_family_writes(name, vocabulary):
    grammar = CallGrammar(row_of(name).syntax, TOOLS, {}).required(is_parallel=True)
    assert accepts(vocabulary, grammar, written(name, CALLS))
    assert accepts(vocabulary, grammar, written(name, CALLS[:1]))
    for text in ("", "Hello.", written(name, CALLS)[:-1], f"Well. {written(name, CALLS)}"):
        assert not accepts(vocabulary, grammar, text)
    assert not accepts(vocabulary, grammar, written(name, [("other", {})]))
    assert not accepts(vocabulary, grammar, written(name, [("search", {"count": [1]})]))


@pytest.mark.parametrize("name", WRITERS)
def test_one_call_is_one(name, vocabulary):
    grammar = CallGrammar(row_of(name).syntax, TOOLS, {}).required(is_parallel=False)
    assert accepts(vocabulary, grammar, written(name, CALLS[1:]))
    assert name == "deepseek" or not accepts(vocabulary, grammar, written(name, CALLS))


@pytest.mark.parametrize("name", WRITERS)
def test_schemas_are_satisfied(name, vocabulary):
    grammar = CallGrammar(row_of(name).syntax, STRICT, {}).required(is_parallel=True)
    assert accepts(vocabulary, grammar, written(name, [("pick", {"unit": "C", "n": 4})]))
    for fields in ({"unit": "K"}, {"n": 4}, {"unit": "C", "n": -1}, {"unit": "C", "more": 1}):
        assert not accepts(vocabulary, grammar, written(name, [("pick", fields)]))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_optional_calls_are_checked_and_text_is_free(name, is_parallel, vocabulary):
    grammar = CallGrammar(row_of(name).syntax, TOOLS, {}).optional(is_parallel=is_parallel)
    if name in ("llama_json", "pythonic", "glm4_0414"):
        assert grammar is None
        return
    assert grammar is not None
    assert accepts(vocabulary, grammar, "No call. <b> [1] {2}\n")
    assert accepts(vocabulary, grammar, f"Well. {written(name, CALLS[:1])} So.")
    assert not accepts(vocabulary, grammar, f"Well. {written(name, [('other', {})])}")
    assert name == "deepseek" or accepts(vocabulary, grammar, f"A {written(name, CALLS)} b") is is_parallel


@pytest.mark.parametrize("name", WRITERS)
def test_functions_without_named_parameters_take_any(name, vocabulary):
    """So does the grammar of at most one call without a check."""
    tools = [{"function": {"name": "search", "parameters": {"type": "object"}}}]
    grammar = CallGrammar(row_of(name).syntax, tools, {}).required(is_parallel=False)
    assert accepts(vocabulary, grammar, written(name, [("search", {"text": "a", "n": 1})]))
    assert accepts(vocabulary, grammar, written(name, [("search", {})]))
    tools = [{"function": {"name": "search", "parameters": {"type": "object", "additionalProperties": False}}}]
    grammar = CallGrammar(row_of(name).syntax, tools, {}).required(is_parallel=False)
    assert not accepts(vocabulary, grammar, written(name, [("search", {"text": "a"})]))
    assert accepts(vocabulary, grammar, written(name, [("search", {})]))


def test_marks_that_are_special_tokens_are_tokens(vocabulary):
    tokenizer, _ = toy("byte_level")
    row = FORMATS["hermes"]
    special = {"<tool_call>": tokenizer.special_tokens["<|user|>"], "</tool_call>": tokenizer.special_tokens["<|end|>"]}
    for grammar in (
        CallGrammar(row.syntax, TOOLS, special).required(is_parallel=True),
        CallGrammar(row.syntax, TOOLS, special).optional(is_parallel=True),
    ):
        matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
        inner = vocabulary.tokenize_str('{"name": "a_1", "arguments": {}}')
        token_ids = [special["<tool_call>"], *inner, special["</tool_call>"]]
        assert matcher.try_consume_tokens(token_ids) == len(token_ids)
        assert matcher.is_accepting()


KEYS = st.text(st.sampled_from("aé9_-. \t\n\x1c\"'<>=,:()[]{}\\/|\ufdd0") | st.characters(codec="utf-8"), max_size=12)
ODD_KEYS = ("", "first name", " a", "a ", "a>", 'a">', "a<", "a=b", "[a]", "a" * 256, "a" * 257, "a</arg_key>b")


@pytest.mark.parametrize("name", ["lfm2", "pythonic", "qwen3_coder", "minimax", "glm"])
@given(keys=st.lists(KEYS | st.sampled_from(ODD_KEYS), min_size=1, max_size=3, unique=True))
@settings(deadline=None, max_examples=examples(60))
def test_calls_that_the_grammar_accepts_are_read(name, keys, vocabulary):
    """Names that it cannot read are named; those that it takes are in the call that is read."""
    parameters = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": keys}
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    call: Call = ("f", dict.fromkeys(keys, 1))
    try:
        source, unwritable = CallGrammar(row_of(name).syntax, tools, {}).required(is_parallel=True), None
    except Unwritable as error:
        source, unwritable = "", error
    text = written(name, [call])
    events = parse(FORMATS[name].syntax.machine(ToolSchemas(tools)), [text])
    if unwritable is None:
        assert accepts(vocabulary, source, text)
        assert (calls_of(events), text_of(events)) == ([call], "")
    else:
        assert unwritable.function == "f"
        assert any(repr(key[:100]) in unwritable.reason for key in keys)


@pytest.mark.parametrize("name", ["lfm2", "olmo3", "pythonic", "qwen3_coder", "minimax", "glm"])
@pytest.mark.parametrize("key", ODD_KEYS)
def test_only_names_that_are_lost_are_refused(name, key):
    tools = [{"function": {"name": "f", "parameters": {"properties": {key: {"type": "integer"}}}}}]
    text = WRITERS[name]([("f", {key: 1})])
    events = parse(FORMATS[name].syntax.machine(ToolSchemas(tools)), [text])
    is_read = [event for event in events if isinstance(event, Arguments)] == [Arguments(0, json.dumps({key: 1}))]
    grammar = CallGrammar(row_of(name).syntax, tools, {})
    if is_read and len(key) <= 256:
        assert grammar.required(is_parallel=True)
        return
    with pytest.raises(Unwritable, match="cannot write"):
        grammar.required(is_parallel=True)


MARKS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


@pytest.fixture(scope="module")
def with_marks() -> Tokenizer:
    """The marks are added tokens and not special, as in Qwen's and GLM's vocabularies."""
    backend = byte_level()
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return Tokenizer(backend, {"eos_token": "</s>"})


@pytest.mark.parametrize("name", ["hermes", "glm", "qwen3_coder"])
@pytest.mark.parametrize("way", ["required", "strict", "single", "beside"])
def test_marks_that_are_added_tokens_may_be_drawn_as_tokens_or_spelled(name, way, with_marks):
    grammar = CallGrammar(row_of(name).syntax, TOOLS, with_marks.special_tokens)
    source = {
        "required": lambda: grammar.required(is_parallel=True),
        "strict": lambda: grammar.optional(is_parallel=True),
        "single": lambda: grammar.optional(is_parallel=False),
        "beside": lambda: grammar.beside('"x"', is_parallel=True),
    }[way]()
    vocabulary = GrammarVocabulary(with_marks, with_marks.vocab_size, [1])
    text = written(name, CALLS[:1])
    as_tokens = with_marks.encode(text, add_special_tokens=False)
    assert with_marks.token_id("<tool_call>") in as_tokens
    spelled = [token_id for char in text for token_id in with_marks.encode(char, add_special_tokens=False)]
    assert with_marks.token_id("<tool_call>") not in spelled
    for token_ids in (as_tokens, spelled):
        matcher = compile_grammar(Grammar(GrammarKind.CALLS, source), vocabulary)
        assert matcher.try_consume_tokens(token_ids) == len(token_ids)
        assert matcher.is_accepting()
        shown = with_marks.new_detokenizer()
        seen = "".join(map(shown.append, token_ids)) + shown.flush()
        machine = row_of(name).syntax.resolved(frozenset(with_marks.special_tokens)).machine(ToolSchemas(TOOLS))
        assert calls_of(parse(machine, [seen])) == CALLS[:1]


@pytest.mark.parametrize("name", WRITERS)
def test_calls_or_another_answer(name, vocabulary):
    grammar = CallGrammar(row_of(name).syntax, TOOLS, {}).beside('%json {"type": "integer"}', is_parallel=False)
    assert accepts(vocabulary, grammar, "12")
    assert accepts(vocabulary, grammar, written(name, CALLS[1:]))
    for text in ("", "Hello.", '"a"', f"1{written(name, CALLS[1:])}", f"{written(name, CALLS[1:])}1"):
        assert not accepts(vocabulary, grammar, text)
