"""Messages of `LLM.chat` are checked as those of the server are."""

from __future__ import annotations

from typing import Any

import pytest

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.llm_messages import checked_messages

TEMPLATE = "{% if message['role'] == 'critic' %}{{ '' }}"
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"cut'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi"},
        {"role": "critic", "content": [{"type": "text", "text": "Hi"}, {"type": "refusal", "refusal": "No"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}], "thinking": "so"},
        {"role": "assistant", "content": [], "tool_calls": None},
    ],
    ids=str,
)
def test_what_a_template_can_show_is_passed_on(message: dict[str, Any]):
    assert checked_messages([message], TEMPLATE) == [message]


def test_a_text_among_parts_is_a_part():
    content = checked_messages([{"role": "user", "content": ("Hi", {"type": "text", "text": "Ho"})}], "")[0]["content"]
    assert content == [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Ho"}]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"content": 5}, ".content"),
        ({"content": b"Hi"}, ".content"),
        ({"content": {"text": "Hi"}}, ".content"),
        ({"content": [5]}, ".content[0]"),
        ({"content": [{"type": "text", "text": None}]}, ".content[0].text"),
        ({"tool_calls": "x"}, ".tool_calls"),
        ({"tool_calls": [{"id": "a"}]}, ".tool_calls[0]"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, ".tool_calls[0]"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": 5}}]}, ".tool_calls[0].function.arguments"),
    ],
    ids=str,
)
def test_another_form_is_rejected_with_its_place(fields: dict[str, Any], path: str):
    with pytest.raises(InvalidValue, match="; it must be ") as caught:
        checked_messages([{"role": "user", "content": "Hi"}, {"role": "assistant", **fields}], "")
    assert caught.value.param == f"messages[1]{path}"


def test_an_image_is_not_left_out():
    image = {"type": "image_url", "image_url": {"url": "a"}}
    with pytest.raises(UnsupportedParameter, match="'image_url'; only text is supported") as caught:
        checked_messages([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}], "")
    assert caught.value.param == "messages[0].content[1].type"


@pytest.mark.parametrize(
    ("message", "place", "value"),
    [
        ({"content": "Hi"}, "role", "None"),
        ({"role": 7, "content": "Hi"}, "role", "7"),
        ({"role": "usr", "content": "Hi"}, "role", "'usr'"),
        ({"role": "", "content": "Hi"}, "role", "''"),
        ({"role": "user"}, "content", "None"),
        ({"role": "system", "content": []}, "content", r"\[\]"),
    ],
    ids=str,
)
def test_a_message_that_a_template_would_leave_out_is_rejected(message: dict[str, Any], place: str, value: str):
    with pytest.raises(InvalidValue, match=rf"^messages\[0\]\.{place} is {value}; it must be ") as caught:
        checked_messages([message], TEMPLATE)
    assert caught.value.param == f"messages[0].{place}"


def test_a_developer_is_a_system_unless_the_template_knows_one():
    message = {"role": "developer", "content": "Be brief."}
    assert checked_messages([message], TEMPLATE)[0]["role"] == "system"
    assert checked_messages([message], '{% if role == "developer" %}')[0]["role"] == "developer"


def test_a_conversation_without_messages_is_rejected():
    with pytest.raises(InvalidValue, match="at least one"):
        checked_messages([], "")
