"""A new syntax is one class and one row: then its calls are read, its grammars admit them, its marks are no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llguidance
import pytest

from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import choose_tools
from app.text.calls.call_reader import CallReader
from app.text.calls.call_rules import CallRules
from app.text.calls.call_syntax import CallSyntax
from app.text.calls.formats import FORMATS, CallFormat
from app.text.calls.tool_schemas import Parameters
from app.text.grammar.lark_text import quoted
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Text
from app.text.reading.marks import Marks
from app.text.reading.reader import Reading
from tests.text.answer.answers import TOOLS, cut, joined
from tests.text.toys import toy

CALL = '<<search {"count": 3}>>'
ANSWER = f"Well. {CALL} So."


@dataclass(frozen=True, kw_only=True)
class ToyCalls(CallSyntax):
    """As CALL."""

    def read_calls(self, calls: CallReader, mark: str) -> Reading[None]:
        found = yield from calls.reader.read_until(Marks(" "))
        if found is not None:
            calls.begin(found[0])
            calls.end(is_whole=(yield from calls.reader.pass_value(calls.add)))

    def add_rules(self, rules: CallRules, functions: Sequence[Parameters], *, is_parallel: bool) -> str:
        opening, closing = rules.opening(self.opens[0]), rules.mark(self.closes[0])
        rules.add_calls(functions, lambda name, arguments: f"{opening} {quoted(name + ' ')} {arguments} {closing}")
        return rules.repeated("call", is_parallel)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> AnswerFormat:
    """The format of a model whose template has the marks of a row that is new."""
    row = CallFormat("toy", ToyCalls(opens=("<<",), closes=(">>",)), lambda source: "<<" in source)
    monkeypatch.setitem(FORMATS, row.name, row)
    return AnswerFormat.of_template("{{ tools }} <<", {">>": 7, "</s>": 8})


def test_its_calls_are_read_and_its_marks_are_no_text(answers: AnswerFormat):
    answers = AnswerFormat(answers.calls)
    expected = [Text("Well."), CallBegin(0, "search"), Arguments(0, '{"count": 3}'), CallEnd(0), Text(" So.")]
    for pieces in (list(ANSWER), *(cut(ANSWER, [place]) for place in range(len(ANSWER)))):
        parser = answers.new_parser(choose_tools(TOOLS, None, None, answers.calls).schemas, is_inside=False)
        assert parser is not None
        assert joined([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]) == expected


@pytest.mark.parametrize(
    ("text", "is_admitted"), [(CALL, True), (CALL * 2, True), (ANSWER, False), (CALL.replace("3", '"x"'), False)]
)
def test_its_grammar_admits_its_calls_and_nothing_else(answers: AnswerFormat, text: str, is_admitted: bool):
    grammar = choose_tools(TOOLS, "required", None, answers.calls).grammar(AnswerFormat(answers.calls))
    assert grammar is not None
    vocabulary = llguidance.LLTokenizer(toy("byte_level")[1].to_str())
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar.source), log_level=0)
    token_ids = vocabulary.tokenize_str(text)
    assert (matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()) is is_admitted


def test_its_marks_that_are_special_tokens_are_shown_to_the_parser_and_are_tokens_of_the_grammar(
    answers: AnswerFormat,
):
    assert answers.shown_token_ids(has_tools=True) == {7}
    grammar = choose_tools(TOOLS, "required", None, answers.calls).grammar(answers)
    assert grammar is not None and "<[7]>" in grammar.source
