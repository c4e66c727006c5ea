"""Items of an input become messages of a chat: every kind, in turns, and what is wrong is named by its path."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.body.tool_messages import MAX_ID_CHARS
from app.api.responses.item_kinds import MAX_ITEMS, InputItem
from app.api.responses.response_items import SEPARATOR, as_messages, read_items
from app.api.responses.response_tools import RequestTools
from app.contract.errors import InvalidValue, NotFound, RequestError, UnsupportedParameter

USER = {"role": "user", "content": "Hi"}
SEARCH = {"type": "tool_search", "execution": "client"}
FOUND = {"type": "function", "name": "later", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
DEFINED = {"type": "function", "function": {"name": "later", "parameters": FOUND["parameters"]}}
TEXT = [{"type": "input_text", "text": "Hi"}]


def messages_of(*items: Any, tools: Any = None) -> list[dict[str, Any]]:
    """The messages of items, with the fields that they have."""
    return [fields_of(message) for message in as_messages(read_items(list(items)).items, RequestTools(tools))]


def fields_of(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role}
    if message.content is not None:
        fields["content"] = message.content if isinstance(message.content, str) else message.texts
    if message.tool_calls:
        fields["calls"] = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    for name in ("tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            fields[name] = getattr(message, name)
    return fields


def reasoning(*texts: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [part("reasoning_text", each) for each in texts],
    }


def part(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text}


def call(name: str = "f", call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def result(output: Any = "12", call_id: str | None = "call_1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


EACH = {
    "message": ({"type": "message", **USER}, {"role": "user", "content": "Hi"}),
    "reasoning": (reasoning("Hm."), {"role": "assistant", "reasoning_content": "Hm."}),
    "function_call": (call(), {"role": "assistant", "calls": [("call_1", "f", "{}")]}),
    "custom_tool_call": (
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "+a"},
        {"role": "assistant", "calls": [("c", "patch", {"input": "+a"})]},
    ),
    "tool_search_call": (
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "a"}},
        {"role": "assistant", "calls": [("c", "tool_search", {"query": "a"})]},
    ),
    "local_shell_call": (
        {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
        {"role": "assistant", "calls": [("c", "local_shell", {"type": "exec", "command": ["ls"]})]},
    ),
    "shell_call": (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {"role": "assistant", "calls": [("c", "shell", {"commands": ["ls"]})]},
    ),
    "apply_patch_call": (
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        {"role": "assistant", "calls": [("c", "apply_patch", {"type": "delete_file", "path": "a"})]},
    ),
    "function_call_output": (result(), {"role": "tool", "content": "12", "tool_call_id": "call_1"}),
    "custom_tool_call_output": (
        {"type": "custom_tool_call_output", "call_id": "c", "output": [part("input_text", "done")]},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
    ),
    "tool_search_output": (
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [FOUND]},
        {"role": "tool", "content": json.dumps([DEFINED]), "tool_call_id": "c"},
    ),
    "local_shell_call_output": (
        {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
        {"role": "tool", "content": "a.txt", "tool_call_id": "c"},
    ),
    "shell_call_output": (
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
        {"role": "tool", "content": '[{"stdout":"a","stderr":""}]', "tool_call_id": "c"},
    ),
    "apply_patch_call_output": (
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
        {"role": "tool", "content": "failed", "tool_call_id": "c"},
    ),
    "additional_tools": (
        {"type": "additional_tools", "role": "developer", "tools": [FOUND]},
        {"role": "system", "content": f"<tools>\n{json.dumps(DEFINED)}\n</tools>"},
    ),
}


def test_every_kind_of_item_has_an_example():
    assert set(EACH) == {kind.__struct_config__.tag for kind in get_args(InputItem)}


@pytest.mark.parametrize("kind", EACH)
def test_an_item_becomes_a_message(kind):
    item, expected = EACH[kind]
    (message,) = messages_of(item)
    if kind == "additional_tools":
        assert message["role"] == "system" and expected["content"] in message["content"]
    else:
        assert message == expected


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_list_tools",
        "mcp_approval_request", "mcp_approval_response", "mcp_call", "computer_call", "computer_call_output",
        "configuration_update", "program", "program_output",
    ],
)  # fmt: skip
def test_an_item_of_a_hosted_tool_is_left_out_and_named(kind):
    items = [USER, {"type": kind, "id": "x", "status": "completed"}, {"role": "assistant", "content": "Ho"}]
    assert read_items(items).left_out == ("input[1]",)
    assert messages_of(*items) == [USER, {"role": "assistant", "content": "Ho"}]


@pytest.mark.parametrize("kind", ["compaction", "compaction_trigger", "telepathy", ""])
def test_an_item_of_another_type_is_refused(kind):
    with pytest.raises(UnsupportedParameter) as caught:
        read_items([USER, {"type": kind}])
    assert caught.value.param == "input[1].type" and caught.value.message.startswith("input[1].type is ")


@pytest.mark.parametrize("fields", [{"type": "item_reference"}, {"type": None}, {}])
def test_a_reference_to_an_item_finds_nothing(fields):
    with pytest.raises(NotFound, match=r"^input\[1\] refers to the item 'msg_1'") as caught:
        read_items([USER, {"id": "msg_1", **fields}])
    assert caught.value.param == "input[1].id"


def test_a_text_is_one_message_of_the_user():
    assert [fields_of(each) for each in as_messages(read_items("Hi").items, RequestTools())] == [USER]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_one_part_is_the_same_as_its_text(role):
    kinds = ("output_text", "text") if role == "assistant" else ("input_text", "text")
    spellings = ["Hi", *([part(kind, "Hi")] for kind in kinds)]
    assert [messages_of({"role": role, "content": each}) for each in spellings] == [
        [{"role": role, "content": "Hi"}]
    ] * len(spellings)


def test_several_parts_stay_parts():
    assert messages_of({"role": "user", "content": [*TEXT, *TEXT]}) == [{"role": "user", "content": ["Hi", "Hi"]}]


def test_a_refusal_is_its_text():
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages_of(item) == [{"role": "assistant", "content": "No."}]


def test_what_an_answer_has_beside_its_text_is_accepted():
    content = [{**part("output_text", "Ho"), "annotations": [{"type": "url_citation"}], "logprobs": []}]
    item = {"type": "message", "id": "msg_1", "status": "completed", "phase": "final_answer", "content": content}
    user = {**USER, "content": [{**TEXT[0], "prompt_cache_breakpoint": {"mode": "explicit"}}]}
    assert messages_of(user, {**item, "role": "assistant"}) == [USER, {"role": "assistant", "content": "Ho"}]


@pytest.mark.parametrize("number", range(5))
def test_all_of_the_assistant_up_to_the_next_other_item_is_one_message(number):
    """However they are ordered: a text behind a call does not separate it from its result."""
    said = [reasoning("Hm."), {"role": "assistant", "content": "Let me see."}, call(), call("g", "call_2")]
    order = [*said[number:], *said[:number]]
    (_, turn, first, second, last) = messages_of(USER, *order, result(), result("13", "call_2"), USER)
    assert (turn["role"], turn["content"], turn["reasoning_content"]) == ("assistant", "Let me see.", "Hm.")
    assert sorted(name for _, name, _ in turn["calls"]) == ["f", "g"]
    assert [first["tool_call_id"], second["tool_call_id"], last] == ["call_1", "call_2", USER]


def test_the_texts_and_the_reasoning_of_a_turn_are_joined():
    said = [
        reasoning("Hm."),
        {"role": "assistant", "content": "a"},
        reasoning("So."),
        {"role": "assistant", "content": "b"},
    ]
    assert messages_of(*said) == [
        {"role": "assistant", "content": ["a", "b"], "reasoning_content": f"Hm.{SEPARATOR}So."}
    ]


def test_a_call_without_result_and_a_result_without_call_stay():
    assert [each["role"] for each in messages_of(call(), USER, result(call_id="other"), USER)] == [
        "assistant", "user", "tool", "user",
    ]  # fmt: skip
    assert messages_of(result(call_id=None)) == [{"role": "tool", "content": "12"}]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"content": None, "summary": []}, None),
        ({"content": [], "summary": [], "encrypted_content": "gAAAA"}, None),
        ({"summary": [part("summary_text", "")]}, None),
        ({}, None),
        ({"content": None, "summary": [part("summary_text", "Short.")]}, "Short."),
        ({"content": [part("reasoning_text", "")], "summary": [part("summary_text", "Short.")]}, "Short."),
        ({"content": [part("reasoning_text", "Long.")], "summary": [part("summary_text", "Short.")]}, "Long."),
        ({"content": [part("text", "Long.")]}, "Long."),
    ],
)
def test_reasoning_is_its_content_else_its_summary(item, text):
    expected = [{"role": "assistant", "reasoning_content": text}] if text else []
    assert messages_of({"type": "reasoning", "id": "rs_1", **item}) == expected


def test_arguments_may_be_anything():
    """A call that was cut comes back as it was, in every later request."""
    for arguments in ('{"a": 1', "", "[1]", {"a": 1}, None, "x" * 2**20):
        (message,) = messages_of(call(arguments=arguments))
        assert message["calls"] == [("call_1", "f", arguments)]


def test_a_call_of_a_namespace_has_the_name_of_the_prompt():
    inner = {"type": "function", "name": "open"}
    tools = [{"type": "namespace", "name": "files", "tools": [inner]}]
    (message,) = messages_of(call("open", namespace="files"), tools=tools)
    assert message["calls"][0][1] == "files__open"
    (message,) = messages_of(call("open", namespace="files"))  # the tool is gone
    assert message["calls"][0][1] == "files__open"


def test_an_image_in_a_result_is_a_word_about_it():
    output = [{"type": "input_image", "image_url": "data:"}, part("input_text", "b"), {"type": "input_file"}]
    (message,) = messages_of(result(output))
    assert message["content"] == [
        "[image left out: this model reads text]", "b", "[file left out: this model reads text]",
    ]  # fmt: skip


def test_tools_that_a_search_has_found_can_be_called():
    tools = RequestTools([SEARCH])
    as_messages(read_items([EACH["tool_search_output"][0]]).items, tools)
    use = tools.use(None, None, None)
    assert use.schemas is not None and use.schemas.names == {"tool_search", "later"}
    assert [each["function"]["name"] for each in use.definitions] == ["tool_search"]


def test_items_of_earlier_responses_have_no_part_in_the_paths_of_errors():
    items = read_items([USER, USER, {"type": "message", "role": "user", "content": []}]).items
    with pytest.raises(InvalidValue) as caught:
        as_messages(items, RequestTools(), 2)
    assert caught.value.param == "input[0].content"


WRONG = [
    (5, "input"),
    ({}, "input"),
    ([5], "input[0]"),
    ([USER, None], "input[1]"),
    ([{"content": "a"}], "input[0].type"),
    ([{"type": 5}], "input[0].type"),
    ([{"role": "robot", "content": "a"}], "input[0].role"),
    ([{"type": "message", "content": "a"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": None}], "input[0].content"),
    ([{"role": "user", "content": []}], "input[0].content"),
    ([{"role": "user", "content": 5}], "input[0].content"),
    ([{"role": "user", "content": ["a"]}], "input[0].content[0]"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ([{"role": "user", "content": [{"text": "a"}]}], "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "input[0].content[0].type"),
    ([call(name=None)], "input[0].name"),
    ([call(arguments=5)], "input[0].arguments"),
    ([call(call_id=5)], "input[0].call_id"),
    ([call(call_id="x" * (MAX_ID_CHARS + 1))], "input[0].call_id"),
    ([result(call_id="x" * (MAX_ID_CHARS + 1))], "input[0].call_id"),
    ([result(output=5)], "input[0].output"),
    ([result(output=[{"type": "video"}])], "input[0].output[0].type"),
    ([{"type": "custom_tool_call", "name": "f", "input": 5}], "input[0].input"),
    ([{"type": "reasoning", "content": "a"}], "input[0].content"),
    ([{"type": "reasoning", "summary": [{"type": "text", "text": "a"}]}], "input[0].summary[0].type"),
    ([{"type": "tool_search_output"}], "input[0].tools"),
    ([{"type": "tool_search_output", "tools": [5]}], "input[0].tools[0]"),
    ([{"type": "additional_tools", "tools": [{"type": "function", "name": ""}]}], "input[0].tools[0].name"),
    ([USER] * (MAX_ITEMS + 1), "input"),
]


@pytest.mark.parametrize(("given", "path"), WRONG)
def test_what_is_wrong_is_named_by_its_path(given, path):
    with pytest.raises(RequestError) as caught:
        as_messages(read_items(given).items, RequestTools())
    assert caught.value.param == path
    assert caught.value.message.startswith(path)


@given(st.lists(st.sampled_from([item for item, _ in EACH.values()]), max_size=12))
def test_a_longer_conversation_begins_with_the_messages_of_a_shorter_one(items):
    """But for the last turn of the assistant, which may go on."""
    whole = messages_of(*items)
    for end in range(len(items)):
        shorter = messages_of(*items[:end])
        if shorter and shorter[-1]["role"] == "assistant":
            shorter.pop()
        assert whole[: len(shorter)] == shorter


def test_the_largest_input_is_read():
    many = [call(), result(), {"role": "assistant", "content": [part("output_text", "Ho")] * 2}, USER]
    assert len(messages_of(*many * (MAX_ITEMS // len(many)))) == MAX_ITEMS
