"""Faults of answers are found, and only faults."""

from __future__ import annotations

import jsonschema
import pytest

from benchmarks.schemas.chats import Answer, Call
from benchmarks.schemas.checks import fault_of_json, faults_of_calls, leaked_marks
from benchmarks.schemas.command import bodies_with_tools, continued
from benchmarks.schemas.conversations import conversations

SCHEMA = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.1}}, "required": ["a"]}


@pytest.mark.parametrize(("text", "is_valid"), [('{"a": 13.2}', True), ('{"a": 13.25}', False), ('{"a": 1', False)])
def test_json_is_checked_exactly(text: str, is_valid: bool):
    assert (fault_of_json(text, SCHEMA) is None) is is_valid


def test_there_are_fifty_conversations_with_valid_schemas():
    found = conversations()
    assert len(found) == 50
    for talk in found:
        for tool in talk.tools:
            jsonschema.Draft202012Validator.check_schema(talk.parameters(tool["function"]["name"]))


def test_calls_are_checked_by_the_parameters_of_their_tool():
    talk = conversations()[0]
    good, wrong = '{"city": "Oslo", "day": "today"}', '{"city": "Oslo", "day": "never"}'
    calls = (Call("1", "get_weather", good), Call("2", "get_weather", wrong), Call("3", "nothing", "{}"))
    faults = faults_of_calls(talk, Answer("", calls, "tool_calls"))
    assert len(faults) == 2 and "never" in faults[0] and "nothing is no tool" in faults[1]


def test_marks_are_found_and_a_mark_that_is_only_named_is_none():
    assert leaked_marks('so <tool_call>\n{"name": "f"}\n</tool_call>') and leaked_marks("a<|im_end|>")
    assert leaked_marks("\ufdd0x") and not leaked_marks('titles with "<tool_call>" in them')


def test_a_continued_conversation_has_the_call_and_its_result():
    talk = conversations()[0]
    later = continued(talk, Answer("", (Call("c1", "get_weather", "{}"),), "tool_calls"))
    assert [message["role"] for message in later.messages[2:]] == ["assistant", "tool", "assistant", "user"]
    (body,) = bodies_with_tools([later], "auto", 7)
    assert body["seed"] == 7 and body["tools"] == talk.tools and body["messages"] == later.messages
