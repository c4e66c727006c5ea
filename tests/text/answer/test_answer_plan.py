"""How answers are read: nothing is planned where they are text alone."""

from __future__ import annotations

from app.text.answer.answer_format import AnswerFormat
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.reasoning_start import ReasoningStart
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import Reasoning, Text

SCHEMAS = ToolSchemas([{"function": {"name": "f"}}])
THINKING = AnswerFormat.of_template("<think></think>", {"<think>": 5, "</think>": 6, "<tool_call>": 7})
INSIDE = ReasoningStart(is_possible=True, is_inside=True, marks=None)


def test_nothing_is_planned_where_nothing_is_parsed():
    without_calls = AnswerFormat()
    assert AnswerPlan.of(without_calls, None, None) is None
    assert AnswerPlan.of(without_calls, SCHEMAS, None) is None
    assert AnswerPlan.of(THINKING, None, None) is None
    assert AnswerPlan.of(THINKING, None, INSIDE) is not None
    assert AnswerPlan.of(THINKING, SCHEMAS, None) is not None


def test_marks_that_are_special_tokens_are_shown_to_the_parser():
    assert AnswerPlan(THINKING, None, INSIDE).shown_token_ids == {5, 6}
    assert AnswerPlan(THINKING, SCHEMAS, INSIDE).shown_token_ids == {5, 6, 7}


def test_a_parser_begins_where_the_prompt_ends():
    for start, expected in ((INSIDE, [Reasoning("so")]), (INSIDE._replace(is_inside=False), [Text("so")])):
        parser = AnswerPlan(THINKING, None, start).new_parser()
        assert parser is not None
        assert [*parser.feed("so"), *parser.finish()] == expected
