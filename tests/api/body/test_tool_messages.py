"""Messages with calls, results and reasoning."""

import pytest

from app.api.body.schemas import ChatBody, read_fields
from app.api.body.tool_messages import MAX_ID_CHARS, tool_fields
from app.contract.errors import RequestError

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1.5, "x"], "b": null}'}}

LONG_ID = "x" * (MAX_ID_CHARS + 1)


def fields_of(**message):
    body, ignored = read_fields({"messages": [message]}, ChatBody, is_strict=True)
    assert ignored == ()
    return tool_fields(0, body.messages[0])


def test_calls_are_passed_on():
    assert fields_of(role="assistant", tool_calls=[CALL]) == {"tool_calls": [CALL]}
    as_object = {**CALL, "function": {"name": "f", "arguments": {"a": [1.5, "x"], "b": None}}}
    assert fields_of(role="assistant", content=None, tool_calls=[{**as_object, "index": 0}]) == {
        "tool_calls": [as_object]
    }
    without_id = {**CALL, "id": None}
    assert fields_of(role="assistant", tool_calls=[without_id])["tool_calls"] == [{**CALL, "id": ""}]
    assert fields_of(role="assistant", tool_calls=[{**CALL, "type": None}]) == {"tool_calls": [CALL]}


def test_an_answer_may_have_more_calls_than_a_request_has_tools():
    assert len(fields_of(role="assistant", tool_calls=[CALL] * 1000)["tool_calls"]) == 1000


def test_a_result_has_the_id_of_its_call():
    message = {"role": "tool", "content": "12", "tool_call_id": "call_1", "name": "f"}
    assert fields_of(**message) == {"tool_call_id": "call_1", "name": "f"}
    assert fields_of(role="tool", content="12") == {}
    assert fields_of(role="user", content="12", name="Ann") == {}


def test_reasoning_has_all_names():
    expected = {"reasoning_content": "Hm.", "thinking": "Hm."}
    assert fields_of(role="assistant", content="a", reasoning_content="Hm.") == expected
    assert fields_of(role="assistant", content="a", reasoning="Hm.") == expected
    assert fields_of(role="user", content="a", reasoning_content="Hm.") == {}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": LONG_ID}]}, "messages[0].tool_calls[0].id"),
        ({"role": "tool", "content": "", "tool_call_id": LONG_ID}, "messages[0].tool_call_id"),
    ],
)  # fmt: skip
def test_errors_name_the_field(message, param):
    with pytest.raises(RequestError) as caught:
        fields_of(**message)
    assert caught.value.param == param
