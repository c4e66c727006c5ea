"""Calls that are JSON objects: unusual and broken ones."""

import pytest

from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Text
from tests.text.answer.answers import parse_calls


def call(index, name, arguments):
    pieces = [Arguments(index, arguments)] if arguments else []
    return [CallBegin(index, name), *pieces, CallEnd(index)]


def broken(index, name, arguments):
    """A call whose arguments are not complete."""
    return call(index, name, arguments)[:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', call(0, "f", '{"a": 1}')),
        ('<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
        ('<tool_call>{"id": "x", "name": "f", "parameters": {}, "x": [1]}</tool_call>', call(0, "f", "{}")),
        ('<tool_call>{"name": "f", "arguments": {}}{"name": "g"}</tool_call>', call(0, "f", "{}") + call(1, "g", "{}")),
        ('<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', call(0, "f", "{}")),
        # Broken after its beginning: it ends as it stands.
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', broken(0, "f", '{"a": 1')),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>!', [*call(0, "f", '{"a": 1}'), Text("!")]),
        ('<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>', [*call(0, "f", "{}"), Text("}")]),
        ('<tool_call>{"name": "f", "arg', broken(0, "f", "")),
        # Never a call: text, with the mark.
        ("<tool_call>", [Text("<tool_call>")]),
        ("<tool_call>\n</tool_call>", [Text("<tool_call>\n</tool_call>")]),
        ('<tool_call>{"name": 1}</tool_call>', [Text('<tool_call>{"name": 1}</tool_call>')]),
        ('<tool_call>{"nam', [Text('<tool_call>{"nam')]),
        ("I use <tool_call> here.", [Text("I use <tool_call> here.")]),
        ("</tool_call>", [Text("</tool_call>")]),
        ("<tool_call> <tool_call>{}", [Text("<tool_call> <tool_call>{}")]),
        ('<tool_call><tool_call>{"name": "f"}</tool_call>', [Text("<tool_call>"), *call(0, "f", "{}")]),
        (
            f'<tool_call>{{"x": "{"y" * 1100}", "name": "f"}}',
            [Text(f'<tool_call>{{"x": "{"y" * 1100}", "name": "f"}}')],
        ),
    ],
)
def test_unusual_calls(text, expected):
    assert parse_calls("hermes", text) == parse_calls("hermes", *text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "search", "parameters": {"a": 1}}', call(0, "search", '{"a": 1}')),
        (' {"type": "function", "name": "search", "parameters": {}};{"name": "a_1"}',
         call(0, "search", "{}") + call(1, "a_1", "{}")),
        ('{"name": "Bob", "age": 3}', [Text('{"name": "Bob", "age": 3}')]),
        ('{"age": 3, "name": "search"}', [Text('{"age": 3, "name": "search"}')]),
        ('So: {"name": "search"}', [Text('So: {"name": "search"}')]),
        ("<|python_tag|>print(1)", [Text("<|python_tag|>print(1)")]),
        ('<|python_tag|>{"name": "f"}', call(0, "f", "{}")),
    ],
)  # fmt: skip
def test_an_answer_may_be_a_call_without_a_mark(text, expected):
    assert parse_calls("llama_json", text) == parse_calls("llama_json", *text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}] ok', [*call(0, "f", "{}"), Text(" ok")]),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}', call(0, "f", "{}")),
        ("[TOOL_CALLS][]", [Text("[TOOL_CALLS][]")]),
        ('[TOOL_CALLS][{"name": "f"}, {"x": 1}]', [*call(0, "f", "{}"), Text(', {"x": 1}]')]),
    ],
)
def test_lists_of_calls(text, expected):
    events = parse_calls("mistral_v3", text)
    assert events == parse_calls("mistral_v3", *text)
    assert [event for event in events if not isinstance(event, Text)] == [
        e for e in expected if not isinstance(e, Text)
    ]
    assert (
        "".join(e.text for e in events if isinstance(e, Text)).strip()
        == "".join(e.text for e in expected if isinstance(e, Text)).strip()
    )
