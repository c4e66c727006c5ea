"""The tools of a request: what the prompt has of them, what an answer calls them, and the client's choice."""

from typing import Any

import pytest

from app.api.responses.asked import CalledTool
from app.api.responses.response_tools import MAX_CHOICE_BYTES, MAX_NAME_CHARS, RequestTools
from app.contract.errors import InvalidValue, RequestError, UnsupportedParameter
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import NO_TOOLS
from app.text.calls.formats import FORMATS
from app.text.calls.tools import MAX_TOOLS, MAX_TOOLS_BYTES

HERMES = FORMATS["hermes"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HOSTED = (
    "web_search", "web_search_preview", "web_search_preview_2025_03_11", "file_search", "code_interpreter",
    "image_generation", "computer", "computer_use_preview", "mcp", "programmatic_tool_calling", "local_shell", "shell",
    "apply_patch",
)  # fmt: skip


def function(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": PARAMETERS, **fields}


def namespace(name: str, *tools: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "Several.", "tools": list(tools)}


def use_of(*tools: Any, choice: object = None, is_parallel: bool | None = None):
    return RequestTools(list(tools)).use(choice, is_parallel, HERMES)


def names_of(definitions: Any) -> list[str]:
    return [each["function"]["name"] for each in definitions]


def test_a_function_is_defined_as_in_a_chat():
    (defined,) = use_of(function(description="The weather.", strict=True)).definitions
    assert defined == {
        "type": "function",
        "function": {"name": "f", "parameters": PARAMETERS, "description": "The weather."},
    }
    assert list(defined["function"]) == ["name", "parameters", "description"]  # in the client's order


def test_only_a_function_that_says_so_is_strict():
    tools = [function("a", strict=True), function("b", strict=False), function("c"), function("d", strict=None)]
    assert use_of(*tools).strict == {"a"}


def test_what_openai_has_beside_a_function_says_nothing():
    tools = RequestTools([function(output_schema={}, allowed_callers=["direct"], **{"async": False})])
    assert tools.ignored == []
    assert tools.use(None, None, HERMES) == use_of(function())
    assert RequestTools([function(colour="red")]).ignored == ["tools[0].colour"]


def test_a_namespace_is_unpacked():
    tools = RequestTools([function(), namespace("files", function("open"), {"type": "custom", "name": "patch"})])
    use = tools.use(None, None, HERMES)
    assert names_of(use.definitions) == ["f", "files__open", "files__patch"]
    assert tools.called.of("files__open") == CalledTool("function", "open", "files")
    assert tools.called.of("files__patch") == CalledTool("custom", "patch", "files")
    assert tools.called.of("f") == CalledTool("function", "f")
    assert tools.called.of("made_up") == CalledTool("function", "made_up")
    assert use.paths["files__open"] == "tools[1].tools[0].parameters"


def test_names_that_would_be_equal_or_too_long_are_shortened_and_known():
    tools = RequestTools([function("a__b"), namespace("a", function("b")), namespace("n" * 60, function("long" * 8))])
    plain, equal, long = names_of(tools.use(None, None, HERMES).definitions)
    assert (plain, len({plain, equal, long})) == ("a__b", 3)
    assert max(map(len, (equal, long))) <= MAX_NAME_CHARS
    assert tools.called.of(equal) == CalledTool("function", "b", "a")
    assert tools.called.of(long) == CalledTool("function", "long" * 8, "n" * 60)
    assert tools.name_in_prompt("b", "a") == equal
    assert tools.name_in_prompt("long" * 8, "n" * 60) == long == RequestTools().name_in_prompt("long" * 8, "n" * 60)


def test_a_tool_that_takes_a_text_is_a_function_with_one_input():
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    tools = RequestTools([{"type": "custom", "name": "patch", "description": "Patches.", "format": form}])
    (defined,) = tools.use(None, None, HERMES).definitions
    assert defined["function"]["parameters"]["required"] == ["input"]
    assert defined["function"]["description"] == ('Patches.\n\nThe input must match this grammar (lark):\nstart: "a"')
    assert tools.called.of("patch") == CalledTool("custom", "patch")
    (plain,) = use_of({"type": "custom", "name": "patch", "format": {"type": "text"}}).definitions
    assert "description" not in plain["function"]


def test_a_search_for_tools_by_the_client_is_a_function():
    search = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": PARAMETERS}
    tools = RequestTools([search])
    (defined,) = tools.use(None, None, HERMES).definitions
    assert defined["function"] == {"name": "tool_search", "description": "Finds.", "parameters": PARAMETERS}
    assert tools.called.of("tool_search") == CalledTool("tool_search", "tool_search")
    (plain,) = use_of({"type": "tool_search", "execution": "client"}).definitions
    assert plain["function"]["parameters"]["required"] == ["query"]
    assert RequestTools([{"type": "tool_search"}]).ignored == ["tools[0]"]


@pytest.mark.parametrize("kind", HOSTED)
def test_a_hosted_tool_is_left_out_and_named(kind):
    tools = RequestTools([function(), {"type": kind, "search_context_size": "low"}])
    assert tools.ignored == ["tools[1]"]
    assert names_of(tools.use(None, None, HERMES).definitions) == ["f"]
    for choice in ({"type": kind}, {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}):
        with pytest.raises(UnsupportedParameter, match=f"^tool_choice names '{kind}'") as caught:
            tools.use(choice, None, HERMES)
        assert caught.value.param == "tool_choice"


def test_a_deferred_tool_is_known_to_the_parser_alone():
    use = use_of(function(), function("later", defer_loading=True))
    assert names_of(use.definitions) == ["f"]
    assert use.schemas.names == {"f", "later"}
    assert names_of(use_of(function(), function("later", defer_loading=True), choice="required").called) == ["f"]


def test_a_deferred_tool_that_was_found_can_be_required():
    tools = RequestTools([function(), function("later", defer_loading=True)])
    (found,) = tools.add_found("input[3].tools", [function("later")])
    assert found["function"]["name"] == "later"
    assert names_of(tools.use("required", None, HERMES).called) == ["f", "later"]


def test_a_tool_that_is_found_again_is_the_same():
    tools = RequestTools([function()])
    for index in range(3):
        assert names_of(tools.add_found(f"input[{index}].tools", [namespace("a", function("b"))])) == ["a__b"]
    assert tools.use(None, None, HERMES).schemas.names == {"f", "a__b"}


def test_the_prompt_is_the_same_whatever_is_chosen():
    """So that its beginning stays in the cache."""
    tools = [function("f"), function("g")]
    some = {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}
    choices = [
        "auto",
        "required",
        {"type": "function", "name": "g"},
        {**some, "mode": "auto"},
        {**some, "mode": "required"},
    ]
    assert {tuple(names_of(use_of(*tools, choice=choice).definitions)) for choice in choices} == {("f", "g")}


@pytest.mark.parametrize(
    ("choice", "called", "is_parallel"),
    [
        (None, [], True),
        ("auto", [], True),
        ("required", ["f", "n__g", "c"], True),
        ({"type": "function", "name": "f"}, ["f"], False),
        ({"type": "custom", "name": "c"}, ["c"], False),
        ({"type": "function", "name": "n__g"}, ["n__g"], False),
        ({"type": "function", "name": "g", "namespace": "n"}, ["n__g"], False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, [], True),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}, {"type": "custom", "name": "c"}],
            },
            ["c"],
            True,
        ),
    ],
)
def test_the_choice_says_what_must_be_called(choice, called, is_parallel):
    tools = [function("f"), namespace("n", function("g")), {"type": "custom", "name": "c"}, {"type": "web_search"}]
    use = use_of(*tools, choice=choice)
    assert (names_of(use.called), use.is_parallel) == (called, is_parallel)
    assert not use_of(*tools, choice=choice, is_parallel=False).is_parallel
    grammar = use.grammar(AnswerFormat(HERMES))
    assert (grammar is not None) == bool(called)


def test_without_tools_or_a_wish_for_calls_there_are_none():
    assert RequestTools().use(None, None, HERMES) == NO_TOOLS
    assert use_of(function(), choice="none") == NO_TOOLS


WRONG_TOOLS = [
    ({}, "tools"),
    ("f", "tools"),
    ([5], "tools[0]"),
    ([{}], "tools[0].type"),
    ([{"type": 5}], "tools[0].type"),
    ([{"type": "telepathy"}], "tools[0].type"),
    ([{"type": "function"}], "tools[0].name"),
    ([{"type": "function", "function": {"name": "f"}}], "tools[0].name"),
    ([function("a b")], "tools[0].name"),
    ([function(5)], "tools[0].name"),
    ([function(description=5)], "tools[0].description"),
    ([function(strict=1)], "tools[0].strict"),
    ([function(parameters=[])], "tools[0].parameters"),
    ([function(parameters={"type": "string"})], "tools[0].parameters"),
    ([function(), function()], "tools[1].name"),
    ([function(), {"type": "custom", "name": "f"}], "tools[1].name"),
    ([{"type": "custom"}], "tools[0].name"),
    ([{"type": "custom", "name": "f", "description": 5}], "tools[0].description"),
    ([{"type": "custom", "name": "f", "format": {"type": "grammar"}}], "tools[0].format.definition"),
    ([namespace("")], "tools[0].name"),
    ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
    ([namespace("n", 5)], "tools[0].tools"),
    ([namespace("n", namespace("m"))], "tools[0].tools[0].type"),
    ([namespace("n", {"type": "web_search"})], "tools[0].tools[0].type"),
    ([namespace("n", function("a b"))], "tools[0].tools[0].name"),
    ([namespace("n", function(), function())], "tools[0].tools[1].name"),
    ([function(f"f{number}") for number in range(MAX_TOOLS + 1)], "tools"),
    ([namespace("n", *(function(f"f{number}") for number in range(MAX_TOOLS + 1)))], "tools"),
    ([function(description="x" * MAX_TOOLS_BYTES)], "tools"),
    ([{"type": "web_search", "filters": "x" * MAX_TOOLS_BYTES}], "tools"),
]


@pytest.mark.parametrize(("tools", "path"), WRONG_TOOLS)
def test_what_is_wrong_with_a_tool_is_named_by_its_path(tools, path):
    with pytest.raises(RequestError) as caught:
        RequestTools(tools).use(None, None, HERMES)
    assert caught.value.param == path
    assert caught.value.message.startswith(path)


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes", "", 5, [], {}, {"type": "function"}, {"type": "function", "name": 5}, {"name": "f"},
        {"type": "function", "name": "other"}, {"type": "custom", "name": "f"}, {"type": "telepathy", "name": "f"},
        {"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f", "namespace": "n"},
        {"type": "function", "name": "f", "namespace": []}, {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "none", "tools": [{"type": "function", "name": "f"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": [5]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_choice_is_named(choice):
    with pytest.raises(InvalidValue) as caught:
        use_of(function(), choice=choice)
    assert caught.value.param == "tool_choice" and caught.value.message.startswith("tool_choice")


def test_a_choice_that_is_too_large_is_rejected():
    """The first events of a stream repeat it."""
    with pytest.raises(InvalidValue, match=r"^tool_choice has \d+ bytes"):
        use_of(function(), choice={"type": "function", "name": "f", "more": "x" * MAX_CHOICE_BYTES})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_call_cannot_be_required_without_tools_or_a_format_of_calls(choice):
    with pytest.raises(InvalidValue):
        RequestTools().use(choice, None, HERMES)
    with pytest.raises(UnsupportedParameter, match="--tool-parser"):
        RequestTools([function()]).use(choice, None, None)


def test_as_many_tools_as_are_allowed_are_read():
    inner = [function(f"f{number}") for number in range(MAX_TOOLS - 1)]
    assert len(use_of(function(), namespace("n", *inner)).definitions) == MAX_TOOLS


def test_a_tool_that_is_found_has_the_definition_that_came_with_it():
    """What an item names again costs what the item says, not what was said before."""
    tools = RequestTools([function("later", description="x" * 1000, defer_loading=True)])
    (found,) = tools.add_found("input[0].tools", [{"type": "function", "name": "later"}])
    assert found["function"] == {"name": "later", "parameters": {"type": "object", "properties": {}}}


def test_found_tools_that_are_too_large_are_named_by_their_item():
    with pytest.raises(InvalidValue, match=r"^input\[0\]\.tools has ") as caught:
        RequestTools().add_found("input[0].tools", [function(description="x" * MAX_TOOLS_BYTES)])
    assert caught.value.param == "input[0].tools"
