"""The shape of a request has its structure, and nothing that a user has written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tools.agents.shapes import facts_of, shape_of

CHAT = {
    "model": "m",
    "stream": True,
    "max_tokens": 32000,
    "messages": [
        {"role": "system", "content": "secret"},
        {"role": "user", "content": [{"type": "text", "text": "secret"}, {"type": "text", "text": "secret"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {"secret": {}}}}],
}


def test_roles_types_and_names_of_tools_are_shown_and_texts_are_not():
    shape = shape_of(CHAT)
    assert shape["messages"] == [
        {"role": "system", "content": "text"},
        {"role": "user", "content": [{"type": "text", "text": "text"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    assert (shape["tools"], shape["stream"], shape["max_tokens"]) == (["function read"], True, "number")
    assert "secret" not in json.dumps(shape)


def test_tools_inside_of_a_namespace_and_hosted_ones_are_named():
    inner = [{"type": "function", "name": "open"}, {"type": "function", "name": "close"}]
    tools = [{"type": "namespace", "name": "page", "tools": inner}, {"type": "web_search"}, {"name": "Read"}]
    expected = ["namespace page (function open function close)", "web_search", "Read"]
    assert shape_of({"tools": tools})["tools"] == expected


def test_keys_that_a_user_or_a_tool_names_are_left_out():
    body = {
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "Read", "input": {"secret": 1}}]}],
        "text": {"format": {"type": "json_schema", "schema": {"properties": {"secret": {}}}}},
        "metadata": {"secret": "x"},
    }
    shape = shape_of(body)
    assert "secret" not in json.dumps(shape)
    assert shape["messages"][0]["content"][0]["input"] == "object"


def test_items_of_input_are_kept():
    items = [{"role": "developer", "content": []}, {"type": "function_call", "arguments": "{}"}]
    expected = [{"role": "developer", "content": []}, {"type": "function_call", "arguments": "text"}]
    assert shape_of({"input": items})["input"] == expected


def test_a_fact_is_a_path_and_a_kind():
    facts = set(facts_of(shape_of(CHAT)))
    assert {"messages[].role: user", "messages[].content[].type: text", "tools[]: function read"} <= facts
    assert "messages[].content: None" in facts


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(JSON)
def test_every_json_has_a_shape_that_is_json_and_has_itself_as_shape_of_its_structure(value):
    shape = shape_of(value)
    assert json.loads(json.dumps(shape)) == shape
    assert all(isinstance(fact, str) for fact in facts_of(shape))
