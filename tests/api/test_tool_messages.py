"""Messages with calls, results and reasoning."""

import pytest

from app.api.schemas import ChatBody, read_fields
from app.api.tool_messages import MAX_ID_CHARS, tool_fields
from app.contract.errors import RequestError
from app.text.tools import MAX_TOOLS

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1.5, "x"], "b": null}'}}

LONG_ID = "x" * (MAX_ID_CHARS + 1)


def fields_of(**message):
    body, ignored = read_fields({"messages": [message]}, ChatBody, is_strict=True)
    assert ignored == ()
    return tool_fields(0, body.messages[0])


def test_arguments_become_objects():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": [1.5, "x"], "b": None}}}
    assert fields_of(role="assistant", tool_calls=[CALL]) == {"tool_calls": [call]}
    as_object = {**CALL, "function": call["function"], "index": 0}
    assert fields_of(role="assistant", content=None, tool_calls=[as_object]) == {"tool_calls": [call]}
    for nothing in ("", None):
        empty = {**CALL, "function": {"name": "f", "arguments": nothing}}
        assert fields_of(role="assistant", tool_calls=[empty])["tool_calls"][0]["function"]["arguments"] == {}


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
        ({"role": "assistant", "tool_calls": [CALL] * (MAX_TOOLS + 1)}, "messages[0].tool_calls"),
        *(
            ({"role": "assistant", "tool_calls": [CALL, {"function": {"name": "f", "arguments": arguments}}]},
             "messages[0].tool_calls[1].function.arguments")
            for arguments in ("[1]", "12", "{", "nul", '{"a": NaN}', '{"a":' * 70 + "1" + "}" * 70, "[" * 10**5)
        ),
    ],
)  # fmt: skip
def test_errors_name_the_field(message, param):
    with pytest.raises(RequestError) as caught:
        fields_of(**message)
    assert caught.value.param == param
