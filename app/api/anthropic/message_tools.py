"""The tools of the Messages API, and the client's choice among them.

Tools that Anthropic runs itself, such as its web search, are left out and named: a refusal would end the turn of an
agent before it begins. A tool with `defer_loading` is not in the prompt; the result of the client's own search for
tools tells the model of it, and its calls are read like those of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.api.anthropic.message_fields import AnyChoice, CountTokensBody, NamedChoice, NoChoice, ToolDefinition
from app.contract.errors import InvalidValue
from app.text.answer.tool_use import NO_TOOLS, ToolUse, check_required
from app.text.calls.formats import CallFormat
from app.text.calls.tools import check_function, check_number, check_size, to_json

_OWN_TYPES = (None, "custom")
_HOSTED_SEARCH = "tool_search_tool"


class MessageTools(NamedTuple):
    """The tools of a body.

    Attributes:
        use: those that the answer may or must call.
        left_out: the paths of those that only Anthropic runs.
        definitions: the JSON of each of the others, by its name.
    """

    use: ToolUse
    left_out: tuple[str, ...]
    definitions: Mapping[str, str]


class _Tool(NamedTuple):
    """A tool of the client's, whose definition has the form that templates get."""

    path: str
    name: str
    definition: dict[str, Any]
    is_strict: bool
    is_deferred: bool


def message_tools(body: CountTokensBody, calls: CallFormat | None) -> MessageTools:
    """Check the tools of a body, for a model whose calls have the format `calls`. Any thread.

    Raises:
        InvalidValue, UnsupportedParameter: a definition or the choice is wrong, or no call can be required.
    """
    given = body.tools or []
    check_number(len(given))
    # Where Anthropic would search, nobody could tell the model of a deferred tool.
    is_searched = any((tool.type or "").startswith(_HOSTED_SEARCH) for tool in given)
    tools: list[_Tool] = []
    left_out: list[str] = []
    names: set[str] = set()
    for index, tool in enumerate(given):
        path = f"tools[{index}]"
        if tool.type not in _OWN_TYPES:
            left_out.append(path)
            continue
        one = _checked(path, tool, is_deferred=bool(tool.defer_loading) and not is_searched)
        if one.name in names:
            path = f"{path}.name"
            raise InvalidValue(f"{path} is {one.name!r}, as that of another tool; names must differ.", param=path)
        names.add(one.name)
        tools.append(one)
    check_size([tool.definition for tool in tools])
    definitions = {tool.name: to_json(tool.definition) for tool in tools}
    return MessageTools(_use(body, tools, calls), tuple(left_out), definitions)


def _checked(path: str, tool: ToolDefinition, *, is_deferred: bool) -> _Tool:
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    try:
        definition = check_function(path, fields)
    except InvalidValue as error:  # it has the path of the schema in chats
        ours, theirs = f"{path}.parameters", f"{path}.input_schema"
        param = error.param or path
        raise InvalidValue(error.message.replace(ours, theirs), param=param.replace(ours, theirs)) from None
    return _Tool(path, str(tool.name), definition, bool(tool.strict), is_deferred)


def _use(body: CountTokensBody, tools: Sequence[_Tool], calls: CallFormat | None) -> ToolUse:
    choice = body.tool_choice
    is_named = isinstance(choice, NamedChoice)
    if not tools and isinstance(choice, AnyChoice | NamedChoice):
        raise InvalidValue("tool_choice needs tools; send tools, or leave it out.", param="tool_choice")
    if not tools or isinstance(choice, NoChoice):
        return NO_TOOLS
    shown = tuple(tool.definition for tool in tools if not tool.is_deferred)
    deferred = tuple(tool.definition for tool in tools if tool.is_deferred)
    called: tuple[dict[str, Any], ...] = ()
    if isinstance(choice, AnyChoice):
        called = shown or deferred
    elif isinstance(choice, NamedChoice):
        called = tuple(tool.definition for tool in tools if tool.name == choice.name)
        if not called:
            raise InvalidValue(
                f"tool_choice names {choice.name[:100]!r}, which is no function in tools.", param="tool_choice"
            )
    if called:
        check_required(calls)
    return ToolUse(
        shown,
        called,
        frozenset(tool.name for tool in tools if tool.is_strict),
        not is_named and not (choice is not None and choice.disable_parallel_tool_use),
        deferred,
        {tool.name: f"{tool.path}.input_schema" for tool in tools},
    )
