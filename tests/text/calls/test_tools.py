"""Tools in prompts: checks, what templates get, and texts that spell special tokens."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checkpoint.text_files import FolderText
from app.contract.errors import InvalidValue, RequestError
from app.text.calls.tools import (
    MAX_DEPTH,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    as_object,
    check_tools,
    in_plain_messages,
    to_json,
    unknown_fields,
    with_named_ids,
    with_short_ids,
)
from app.text.template.chat_template import ChatTemplate, RenderOptions
from app.text.tokens.tokenizer import Tokenizer
from tests.cases import examples
from tests.text.answer.answers import calls_of, parse_calls
from tests.text.templates import LLAMA_3
from tests.text.toys import SPECIAL, toy, write_folder

USER = {"role": "user", "content": "Hi"}
ARGUMENTS = {"city": "Åre", "days": [1, 2]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
ANSWER = {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "12"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}}
HERMES = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson(ensure_ascii=True) }}}
{%- for key, value in call.function.arguments | items %}[{{ key }}]{% endfor %}{% endfor %}
{%- if message.role == 'tool' %}({{ message.tool_call_id }}){% endif %}<|im_end|>
{% endfor %}"""
MISTRAL = """{% for message in messages %}{% for call in message.tool_calls or [] %}[TOOL_CALLS]
{%- if tools %}{% endif %}{% if call.id | length != 9 %}{{ raise_exception('bad id') }}{% endif %}
{{- call.id }}{% endfor %}
{%- if message.role == 'tool' %}{{ message.tool_call_id }}{% endif %}{% endfor %}"""


def rendered(source: str, messages: list, tools: list | tuple = ()) -> str:
    return ChatTemplate(source, toy("byte_level")[0]).render_text(messages, RenderOptions(False, tools=tools))


def test_definitions_and_calls_reach_the_template():
    text = rendered(HERMES, [USER, ANSWER, RESULT], [TOOL])
    assert json.dumps(TOOL) in text
    assert '"arguments": {"city": "\\u00c5re", "days": [1, 2]}' in text
    assert "[city][days]" in text
    assert "(call_1)" in text


def test_no_content_beside_calls_is_an_empty_text():
    for content in (None, ""):
        assert "None" not in rendered(HERMES, [USER, {**ANSWER, "content": content}], [TOOL])


def test_ids_have_the_form_that_the_template_wants():
    text = rendered(MISTRAL, [USER, ANSWER, RESULT])
    call_id = text[len("[TOOL_CALLS]") :][:9]
    assert text == f"[TOOL_CALLS]{call_id}{call_id}" and call_id.isalnum()
    assert rendered(MISTRAL, [USER, {**ANSWER, "tool_calls": [{**CALL, "id": "abcdef123"}]}]).endswith("abcdef123")
    ids = {with_short_ids([{"tool_call_id": f"call_{number}"}], 9)[0]["tool_call_id"] for number in range(500)}
    assert len(ids) == 500


def test_a_template_without_tools_gets_them_as_text():
    messages = [{"role": "system", "content": "Be brief."}, USER, ANSWER, RESULT, {**RESULT, "content": "13"}]
    text = rendered(LLAMA_3, messages, [TOOL])
    system, user, answer, result, _ = text.split("<|eot_id|>")
    assert "Be brief.\n\n# Tools" in system
    assert json.dumps(TOOL) in system and "<tool_call>" in system
    assert user.endswith("Hi")
    assert calls_of(parse_calls("hermes", answer)) == [("weather", ARGUMENTS)]
    assert result.endswith("<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response>")
    assert in_plain_messages([USER], [TOOL])[0]["role"] == "system"
    assert in_plain_messages([USER], []) == [USER]


def asked(*functions: dict[str, Any]) -> str:
    """The example in the text that asks for calls of some functions."""
    tools = check_tools([{"type": "function", "function": function} for function in functions])
    (system, _) = in_plain_messages([USER], tools)
    return system["content"].rpartition("<tool_call>")[2].partition("</tool_call>")[0].strip()


def test_the_example_of_a_call_is_of_a_real_tool_and_no_json():
    properties = {
        "a": {"type": "number"},
        "b": {"type": ["string", "null"]},
        "c": {"enum": ["x", 1]},
        "d": {"$ref": "#/$defs/list"},
        'e "f"': {"description": "anything"},
    }
    parameters = {"type": "object", "properties": properties, "$defs": {"list": {"type": "array"}}}
    example = asked({"name": "now"}, {"name": "add", "parameters": parameters}, {"name": "other"})
    assert example == (
        '{"name": "add", "arguments": {"a": number, "b": null or string, "c": integer or string, "d": array, '
        '"e \\"f\\"": value}}'
    )
    with pytest.raises(json.JSONDecodeError):
        json.loads(example)


def test_a_tool_without_arguments_is_shown_as_it_is_called():
    assert asked({"name": "now"}, {"name": "here"}) == '{"name": "now", "arguments": {}}'


def test_an_example_has_few_arguments():
    properties = {f"a{number}": {"type": "string"} for number in range(100)}
    assert asked({"name": "f", "parameters": {"type": "object", "properties": properties}}).count("string") == 8


@pytest.mark.parametrize("place", ["folder", "file"])
def test_the_template_for_tools_is_used_with_tools(tmp_path, place):
    templates = {"default": "plain", "tool_use": "with {{ tools | length }} tools"}
    if place == "file":
        listed = [{"name": name, "template": text} for name, text in templates.items()]
        folder = write_folder(tmp_path, chat_template=listed)
    else:
        folder = write_folder(tmp_path)
        (folder / "chat_template.jinja").write_text(templates["default"])
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(templates["tool_use"])
    template = ChatTemplate.load(FolderText(folder), Tokenizer.load(FolderText(folder)))
    assert template.render_text([USER]) == "plain"
    assert template.render_text([USER], RenderOptions(tools=[TOOL])) == "with 1 tools"


def test_from_json_reads_json():
    assert rendered("{{ (messages[0].content | from_json).a[1] }}", [{**USER, "content": '{"a": [1, "x"]}'}]) == "x"


def test_from_json_reads_integers_of_at_most_64_digits():
    source, digits = "{{ messages[0].content | from_json }}", "9" * 64
    assert rendered(source, [{**USER, "content": digits}]) == digits
    with pytest.raises(InvalidValue, match="reads JSON that has an integer of 65 digits; at most 64 are allowed"):
        rendered(source, [{**USER, "content": f"{digits}9"}])


SPELLED = st.lists(st.sampled_from([*SPECIAL, "a", "猫", '"', " "]), min_size=1, max_size=3).map("".join)


@settings(max_examples=examples(60))
@given(texts=st.lists(SPELLED, min_size=6, max_size=6), source=st.sampled_from([HERMES, LLAMA_3]))
def test_special_tokens_spelled_in_tools_are_text(texts, source):
    """In descriptions, keys, names, arguments and results; with `ensure_ascii`, too."""
    description, key, name, argument, value, result = texts
    properties = {key: {"description": description}}
    tool = {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
    call = {**CALL, "function": {"name": name, "arguments": {argument: {key: value}}}}
    template = ChatTemplate(source, toy("byte_level")[0])
    plain = [
        USER,
        {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": {"b": "c"}}}}]},
        RESULT,
    ]
    messages = [USER, {**ANSWER, "tool_calls": [call]}, {**RESULT, "content": result}]
    special = set(toy("byte_level")[0].special_tokens.values())
    options = RenderOptions(False, tools=[tool])
    found = [token_id for token_id in template.render(messages, options) if token_id in special]
    plain_tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    expected = template.render(plain, RenderOptions(False, tools=[plain_tool]))
    assert found == [token_id for token_id in expected if token_id in special]


def test_definitions_are_passed_on_without_strict():
    given: Any = {"type": "function", "function": {"name": "f", "strict": True, "description": None, "x": 1}}
    assert check_tools([given]) == [
        {"type": "function", "function": {"name": "f", "x": 1, "parameters": {"type": "object", "properties": {}}}}
    ]


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        (function() * (MAX_TOOLS + 1), "tools"),
        (function(description="x" * MAX_TOOLS_BYTES), "tools"),
        (["f"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        (function(name="a b"), "tools[0].function.name"),
        (function(name="x" * 129), "tools[0].function.name"),
        (function(name="a:b"), "tools[0].function.name"),
        (function(name=None), "tools[0].function.name"),
        (function() * 2, "tools[1].function.name"),
        (function(description=1), "tools[0].function.description"),
        (function(strict="yes"), "tools[0].function.strict"),
        (function(parameters=[]), "tools[0].function.parameters"),
        (function(parameters={"type": "array"}), "tools[0].function.parameters"),
        (function(parameters={"type": ["object"]}), "tools[0].function.parameters"),
        (function(parameters={"properties": ["a"]}), "tools[0].function.parameters"),
        (function(parameters={"properties": {"a": "string"}}), "tools[0].function.parameters"),
        (function(parameters={"$defs": []}), "tools[0].function.parameters"),
        (function(parameters={"required": True}), "tools[0].function.parameters"),
        (function(parameters={"required": [1]}), "tools[0].function.parameters"),
        (function(parameters={"required": "a"}), "tools[0].function.parameters"),
    ],
)
def test_wrong_definitions_are_rejected(tools, param):
    with pytest.raises(RequestError) as caught:
        check_tools(tools)
    assert caught.value.param == param


def test_nesting_is_limited():
    value: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value}
    assert as_object(json.dumps(value)) == value
    deeper = json.dumps({"a": value})
    assert as_object(deeper) == {"arguments": deeper}
    with pytest.raises(RequestError):
        check_tools(function(parameters={"a": value}))


def test_arguments_are_an_object():
    assert as_object(json.dumps(ARGUMENTS)) == as_object(ARGUMENTS) == ARGUMENTS
    assert as_object("") == as_object(None) == {}


DAMAGED = (
    "[1]", "12", "{", "nul", '{"a": NaN}', '{"a":' * 70 + "1" + "}" * 70, "[" * 10**5, '{"city": "Os', " ",
    f'{{"a": {"9" * 65}}}', json.dumps({"a": [10**4000] * 900}), json.dumps({"a": [1] * 70_000}),
)  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:12])
def test_arguments_that_are_no_object_are_the_text_in_one(text):
    """A call that was cut by the limit, or that the model wrote so, is accepted when it comes back."""
    assert as_object(text) == {"arguments": text}


def test_integers_of_64_digits_are_read():
    assert as_object(f'{{"a": {"9" * 64}}}') == {"a": int("9" * 64)}


AS_TEXT = """{% if tools %}<tool_call>{% endif %}{% for message in messages %}{% for tool in message.tool_calls or [] %}
{{- '<' + tool['function']['arguments'] + '>' }}{% endfor %}{% endfor %}"""


def test_templates_get_what_they_want_of_damaged_calls():
    """Objects, the text as it is, or text that a model without a syntax for calls would write."""
    cut = '{"city": "Os'
    answer = {**ANSWER, "tool_calls": [{"function": {"name": "weather", "arguments": cut}}]}
    assert '"arguments": {"arguments": "{\\"city\\": \\"Os"}' in rendered(HERMES, [USER, answer])
    assert rendered(AS_TEXT, [USER, answer]) == f"<{cut}>"
    assert json.dumps({"name": "weather", "arguments": {"arguments": cut}}) in rendered(LLAMA_3, [USER, answer])


def test_templates_that_want_text_get_json_of_one_form():
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS), json.dumps(ARGUMENTS, separators=(",", ":"))):
        answer = {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": arguments}}]}
        assert rendered(AS_TEXT, [USER, answer]) == f"<{json.dumps(ARGUMENTS, ensure_ascii=False)}>"


def test_a_call_without_an_id_gets_one_where_the_template_insists():
    answer = {**ANSWER, "tool_calls": [{"function": {"name": "weather"}}]}
    assert re.fullmatch(r"\[TOOL_CALLS\]\w{9}", rendered(MISTRAL, [USER, answer]))


def test_as_many_definitions_as_are_allowed_are_accepted():
    tools = [tool for number in range(MAX_TOOLS) for tool in function(name=f"f{number}")]
    assert len(check_tools(tools)) == MAX_TOOLS
    rest = MAX_TOOLS_BYTES - len(to_json(check_tools(function(description=""))))
    assert check_tools(function(description="x" * rest))
    with pytest.raises(InvalidValue, match=f"tools has {MAX_TOOLS_BYTES + 1} bytes as JSON"):
        check_tools(function(description="x" * (rest + 1)))


def test_definitions_that_are_much_too_large_are_never_written_by_python(monkeypatch):
    monkeypatch.setattr(json, "dumps", None)
    with pytest.raises(InvalidValue, match=r"tools has \d{7} bytes as JSON; at most 524288 are allowed"):
        check_tools(function(parameters={"enum": [0.125] * 500_000}))


def test_definitions_may_have_integers_that_only_python_writes():
    assert check_tools(function(parameters={"maximum": 2**70}))
    with pytest.raises(InvalidValue, match="bytes as JSON"):
        check_tools(function(parameters={"enum": [2**70] * 30_000}))


def test_a_missing_name_is_called_missing():
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.name is missing; it must have 1 to 128"):
        check_tools([{"type": "function", "function": {}}])


def test_unknown_fields_are_named():
    tools = [*function(x=1), {"type": "function", "cache": 2, "function": {"name": "g", "parameters": {"y": 3}}}, 7]
    assert [path for path, _, _ in unknown_fields(tools)] == ["tools[0].function.x", "tools[1].cache"]
    assert list(unknown_fields(None)) == []


@pytest.mark.parametrize("name", ["files.read", "github/create-issue", "a.b/c-d_1", "x" * 128])
def test_names_that_mcp_allows_are_allowed(name):
    assert check_tools(function(name=name))[0]["function"]["name"] == name


def test_ids_of_calls_can_be_the_names_of_functions_and_numbers_in_the_conversation():
    def call(call_id: str, name: str) -> dict[str, object]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}

    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("call_a", "f"), call("call_b", "g")]},
        {"role": "tool", "tool_call_id": "call_b", "content": "2"},
        {"role": "tool", "tool_call_id": "call_a", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call("functions.f:2", "f")]},
        {"role": "tool", "tool_call_id": "functions.f:2", "content": "3"},
        {"role": "tool", "tool_call_id": "nothing", "content": "4"},
    ]
    changed = with_named_ids(messages)
    assert [one["id"] for message in changed for one in message.get("tool_calls", ())] == [
        "functions.f:0", "functions.g:1", "functions.f:2",
    ]  # fmt: skip
    assert [message["tool_call_id"] for message in changed if message["role"] == "tool"] == [
        "functions.g:1", "functions.f:0", "functions.f:2", "nothing",
    ]  # fmt: skip
    assert messages[0]["tool_calls"][0]["id"] == "call_a", "the client's messages are not changed"
