"""Calls whose name stands before their JSON."""

import pytest

from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Text
from tests.text.answer.answers import parse_calls

CALL = [CallBegin(0, "f"), Arguments(0, '{"a": 1}'), CallEnd(0)]
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', CALL),
        ("mistral", '[TOOL_CALLS] f [CALL_ID]x[ARGS] {"a": 1} so', [*CALL, Text("so")]),
        ("mistral", "[TOOL_CALLS]f", [Text("[TOOL_CALLS]f")]),
        ("mistral", "[TOOL_CALLS]f[ARGS]x", [Text("[TOOL_CALLS]f[ARGS]x")]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1', [CALL[0], Arguments(0, '{"a": 1')]),
        ("functionary", '<function=f>{"a": 1}</function>', CALL),
        ("functionary", '<function=two words>{"a": 1}', [Text('<function=two words>{"a": 1}')]),
        ("functionary", "See <function=f>.", [Text("See <function=f>.")]),
        ("deepseek", f'{BEGIN}f{SEP}{{"a": 1}}{END}', CALL),
        ("deepseek", f'{BEGIN}function{SEP}f\n```json\n{{"a": 1}}\n```{END}', CALL),
        ("deepseek", f'{BEGIN}function{SEP}f\n{{"a": 1}}{END}!', [*CALL, Text("!")]),
        ("deepseek", f"<｜tool▁calls▁begin｜>{BEGIN}f", [Text(f"<｜tool▁calls▁begin｜>{BEGIN}f")]),
        ("deepseek", f"x {END}", [Text(f"x {END}")]),
    ],
)
def test_unusual_calls(name, text, expected):
    assert parse_calls(name, text) == parse_calls(name, *text) == expected
