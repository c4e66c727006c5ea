"""The tools of the Messages API, and the choice among them."""

from typing import Any

import msgspec
import pytest

from app.api.anthropic.message_fields import CountTokensBody
from app.api.anthropic.message_tools import MessageTools, message_tools
from app.contract.errors import InvalidValue, RequestError, UnsupportedParameter
from app.text.answer.tool_use import NO_TOOLS
from app.text.calls.formats import FORMATS
from app.text.calls.tools import MAX_TOOLS, MAX_TOOLS_BYTES
from tests.api.anthropic.messages import CITY, TOOLS, USER, parsed, prompt_of
from tests.api.serving import make_app, with_grammars

HERMES = FORMATS["hermes"]
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
LATER = {"name": "later", "input_schema": CITY, "defer_loading": True}


def read(tools: list[Any] | None, choice: Any = None, calls: Any = HERMES) -> MessageTools:
    fields = {"messages": [USER], "tools": tools, "tool_choice": choice}
    return message_tools(msgspec.convert(fields, CountTokensBody), calls)


def names(definitions: tuple[dict[str, Any], ...]) -> list[str]:
    return [one["function"]["name"] for one in definitions]


def test_a_tool_is_a_function_of_a_chat():
    tools = read([TOOLS[0] | {"type": "custom", "strict": True, "input_examples": [{}], "cache_control": {}}])
    function = {"name": "weather", "description": "The weather.", "parameters": CITY}
    assert tools.use.definitions == ({"type": "function", "function": function},)
    assert tools.use.strict == {"weather"}
    assert tools.use.paths == {"weather": "tools[0].input_schema"}
    assert tools.left_out == ()


def test_without_tools_there_is_nothing():
    for tools, choice in ((None, None), ([], {"type": "auto"}), (TOOLS, {"type": "none"})):
        assert read(tools, choice).use == NO_TOOLS


@pytest.mark.parametrize(
    ("choice", "called", "is_parallel"),
    [
        (None, [], True),
        ({"type": "auto"}, [], True),
        ({"type": "auto", "disable_parallel_tool_use": True}, [], False),
        ({"type": "any"}, ["weather", "g"], True),
        ({"type": "any", "disable_parallel_tool_use": True}, ["weather", "g"], False),
        ({"type": "tool", "name": "g"}, ["g"], False),
    ],
)
def test_the_choice_says_which_tools_must_be_called(choice, called, is_parallel):
    use = read([*TOOLS, {"name": "g", "input_schema": CITY}], choice).use
    assert names(use.definitions) == ["weather", "g"], "the prompt does not depend on it"
    assert (names(use.called), use.is_parallel) == (called, is_parallel)


@pytest.mark.parametrize(
    "kind",
    ["web_search_20250305", "bash_20250124", "text_editor_20250728", "code_execution_20250825", "computer_20250124",
     "memory_20250818", "mcp_toolset"],
)  # fmt: skip
def test_a_tool_that_anthropic_runs_is_left_out_and_named(kind):
    tools = read([{"type": kind}, *TOOLS])
    assert tools.left_out == ("tools[0]",)
    assert names(tools.use.definitions) == ["weather"]
    assert tools.use.paths == {"weather": "tools[1].input_schema"}
    assert read([{"type": kind}]).use == NO_TOOLS


def test_a_deferred_tool_can_be_called_and_is_not_in_the_prompt():
    tools = read([*TOOLS, LATER])
    assert (names(tools.use.definitions), names(tools.use.deferred)) == (["weather"], ["later"])
    assert tools.use.schemas is not None and tools.use.schemas.names == {"weather", "later"}
    assert tools.definitions["later"].startswith('{"type": "function", "function": {"name": "later", ')


def test_tools_are_not_deferred_where_anthropic_would_search_them():
    tools = read([LATER, {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}])
    assert names(tools.use.definitions) == ["later"] and not tools.use.deferred


async def test_a_reference_tells_the_model_of_a_deferred_tool_behind_its_prefix():
    app = await make_app()
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "later"}]}
    before = [USER, {"role": "assistant", "content": [call]}]
    prompt = await prompt_of(app, tools=[*TOOLS, LATER], messages=[*before, {"role": "user", "content": [result]}])
    assert prompt.count('"later"') == 1
    front = await prompt_of(app, tools=TOOLS, messages=[USER])
    assert prompt.startswith(front.partition(USER["content"])[0])


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"input_schema": CITY}], None, "tools[0].name"),
        ([{"name": "a b", "input_schema": CITY}], None, "tools[0].name"),
        ([{"name": "f" * 129, "input_schema": CITY}], None, "tools[0].name"),
        ([*TOOLS, *TOOLS], None, "tools[1].name"),
        ([SEARCH, {"name": "f", "input_schema": {"type": "array"}}], None, "tools[1].input_schema"),
        ([{"name": "f", "input_schema": {"type": "object", "required": 3}}], None, "tools[0].input_schema"),
        ([{"name": f"f{n}", "input_schema": CITY} for n in range(MAX_TOOLS + 1)], None, "tools"),
        ([{"name": "f", "description": "x" * MAX_TOOLS_BYTES, "input_schema": CITY}], None, "tools"),
        ([], {"type": "any"}, "tool_choice"),
        ([SEARCH], {"type": "any"}, "tool_choice"),
        ([*TOOLS, SEARCH], {"type": "tool", "name": "web_search"}, "tool_choice"),
    ],
)
def test_what_is_wrong_is_named_as_the_client_has_it(tools, choice, param):
    with pytest.raises(InvalidValue) as caught:
        read(tools, choice)
    assert caught.value.param == param and caught.value.message.startswith(param)
    assert "function.parameters" not in caught.value.message


def test_a_call_cannot_be_required_of_a_model_without_a_syntax():
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        with pytest.raises(UnsupportedParameter, match="tool_choice"):
            read(TOOLS, choice, None)
    assert read(TOOLS, None, None).use.definitions


async def test_a_required_call_has_a_grammar_and_a_wrong_schema_its_path():
    app = with_grammars(await make_app())
    assert (await parsed(app, tools=TOOLS)).request.grammar is None
    request = await parsed(app, tools=TOOLS, tool_choice={"type": "any"})
    request.release()
    assert "weather" in request.request.grammar.source
    wrong = {"name": "f", "input_schema": {"type": "object", "required": ["a"], "properties": {"a": {"not": {}}}}}
    with pytest.raises(RequestError, match=r"^tools\[1\].input_schema ") as caught:
        await parsed(app, tools=[SEARCH, wrong], tool_choice={"type": "any"})
    assert caught.value.param == "tools[1].input_schema"


async def test_left_out_tools_are_named_in_the_header():
    tools = [SEARCH, *TOOLS, SEARCH | {"name": "b"}]
    request = await parsed(await make_app(), tools=tools, context_management={"a": 1})
    assert request.ignored == ("context_management", "tools[0]", "tools[2]")
