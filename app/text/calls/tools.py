"""Tools in a prompt: checks of their definitions and calls, and the text that asks models without a syntax for calls.

Definitions and messages are those of OpenAI's API. Templates get them as they are, but for two things: a call's
arguments are an object, not its JSON, because most templates loop over it; and ids have the form that the template
insists on, made from ours by a hash, the same in a call and in its result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import orjson

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.calls.tool_schemas import Parameters
from app.text.reading.json_text import parse_json

MAX_TOOLS = 256
MAX_TOOLS_BYTES = 512 * 2**10
MAX_DEPTH = 64  # of the JSON of definitions and arguments
# As MCP allows them. All formats of calls write and read such names; OpenAI's API has no dots and slashes.
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_NAME_RULE = "it must have 1 to 128 letters, digits, '_', '-', '.' or '/'"
# What `check_tools` accepts, for the OpenAPI document: templates need fields that no struct has.
TOOLS_SCHEMA: Mapping[str, object] = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "properties": {
            "type": {"enum": ["function", None]},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                },
                "required": ["name"],
            },
        },
        "required": ["function"],
    },
}
_TOOL_FIELDS = ("type", "function")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DEFINE = """# Tools

You may call one or more of these functions. Their definitions are JSON, one in each line:
<tools>
{definitions}
</tools>"""
_ASK = """

To call a function, write one JSON object with its name and arguments in this form:
<tool_call>
{{"name": "{name}", "arguments": {{{arguments}}}}}
</tool_call>"""
MAX_SHOWN_ARGUMENTS = 8
ID_PATH = "functions."
"""What stands before the name in ids that have the name of the function, and behind it a colon and a number."""

Messages = list[dict[str, Any]]


def check_tools(tools: object) -> list[dict[str, Any]]:
    """Return the definitions of a request's tools as templates get them: without `strict`, and with parameters.

    Raises:
        InvalidValue, UnsupportedParameter: the path names the definition.
    """
    if not isinstance(tools, list):
        raise InvalidValue(f"tools is not a list; it must be a list of at most {MAX_TOOLS} tools.", param="tools")
    check_number(len(tools))
    checked = [_check_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for index, name in enumerate(names):
        if name in names[:index]:
            path = f"tools[{index}].function.name"
            raise InvalidValue(f"{path} is {name!r}, as that of another tool; names must differ.", param=path)
    check_size(checked)
    return checked


def check_number(num_tools: int) -> None:
    """Check the number of a request's tools.

    Raises:
        InvalidValue: there are too many.
    """
    if num_tools > MAX_TOOLS:
        raise InvalidValue(
            f"tools has {num_tools} items; it must be a list of at most {MAX_TOOLS} tools.", param="tools"
        )


def check_size(definitions: object, path: str = "tools") -> None:
    """Check the size of a request's definitions as JSON, which are at `path`.

    Raises:
        InvalidValue: they are too large.
    """
    num_bytes = _num_bytes(definitions)
    if num_bytes > MAX_TOOLS_BYTES:
        raise InvalidValue(f"{path} has {num_bytes} bytes as JSON; at most {MAX_TOOLS_BYTES} are allowed.", param=path)


def unknown_fields(tools: object) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the fields of definitions that the server does not know: path, name, and the names that are known there.

    Templates get them.
    """
    for index, tool in enumerate(tools) if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        for path, fields, known in (
            (f"tools[{index}]", tool, _TOOL_FIELDS),
            (f"tools[{index}].function", function, _FUNCTION_FIELDS),
        ):
            for name in fields if isinstance(fields, dict) else ():
                if name not in known:
                    yield f"{path}.{name}", name, known


def as_object(arguments: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the arguments of a call in a message as an object; no text means none.

    A model may write anything, and a limit of tokens cuts a call anywhere: text that is not the JSON of an object, or
    nested too deeply or too large to be read, is the only value of an object.
    """
    if isinstance(arguments, Mapping):
        return arguments
    try:
        value = parse_json(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) and _depth(value) <= MAX_DEPTH else {"arguments": arguments}


def with_arguments_as_objects(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return calls whose arguments are objects."""
    return [
        {**call, "function": {**call["function"], "arguments": as_object(call["function"].get("arguments"))}}
        for call in calls
    ]


def with_arguments_as_text(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return calls whose arguments are the JSON of the objects, or the text that is none."""
    return [
        {**call, "function": {**call["function"], "arguments": _as_text(call["function"].get("arguments"))}}
        for call in calls
    ]


def with_short_ids(messages: Sequence[Mapping[str, Any]], num_chars: int) -> Messages:
    """Return messages whose ids of calls have exactly `num_chars` letters and digits."""
    changed: Messages = []
    for message in messages:
        fields = dict(message)
        if "tool_call_id" in fields:
            fields["tool_call_id"] = _short_id(fields["tool_call_id"], num_chars)
        if fields.get("tool_calls"):
            fields["tool_calls"] = [
                {**call, "id": _short_id(call.get("id") or "", num_chars)} for call in fields["tool_calls"]
            ]
        changed.append(fields)
    return changed


def with_named_ids(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Return messages whose ids of calls are the function's name and the call's number in the conversation."""
    changed: Messages = []
    ids: dict[str, str] = {}
    number = 0
    for message in messages:
        fields, calls = dict(message), []
        for call in fields.get("tool_calls") or ():
            ids[call["id"]] = f"{ID_PATH}{call['function']['name']}:{number}"
            calls.append({**call, "id": ids[call["id"]]})
            number += 1
        if calls:
            fields["tool_calls"] = calls
        if "tool_call_id" in fields:
            fields["tool_call_id"] = ids.get(fields["tool_call_id"], fields["tool_call_id"])
        changed.append(fields)
    return changed


def with_call_messages(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Return messages in which each call is one of its own: its content is the JSON, its metadata the function's name.

    Results are messages of the role observation.
    """
    changed: Messages = []
    for message in messages:
        fields = {name: value for name, value in message.items() if name != "tool_calls"}
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            fields["role"] = "observation"
        if fields.get("content") or not calls:
            changed.append(fields)
        for function in (call["function"] for call in calls):
            content = _as_text(function.get("arguments"))
            changed.append({"role": message["role"], "metadata": function["name"], "content": content})
    return changed


def in_plain_messages(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Messages:
    """Return messages for a template without tools: the definitions are in the system message, in the form of Hermes.

    Calls are text of the assistant, and results are messages of the user; adjacent ones are one message.
    """
    plain: Messages = []
    was_result = False
    for message in messages:
        content, is_result = message.get("content") or "", message["role"] == "tool"
        if is_result:
            content = f"<tool_response>\n{content}\n</tool_response>"
        if is_result and was_result:
            plain[-1]["content"] += f"\n{content}"
        elif is_result:
            plain.append({"role": "user", "content": content})
        else:
            calls = [_call_text(call["function"]) for call in message.get("tool_calls") or ()]
            fields = {name: value for name, value in message.items() if name != "tool_calls"}
            plain.append({**fields, "content": "\n".join(filter(None, (content, *calls)))})
        was_result = is_result
    return with_definitions(plain, tools, _ask(tools) if tools else "")


def _ask(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that asks for calls, with the form of one: of the first tool that has arguments, if one has.

    Small models copy such a form, so it has the names of a real tool. In place of values it has the words for their
    types, without quotes: that is no JSON, so it cannot be an answer.
    """
    functions = (Parameters(tool["function"]) for tool in tools)
    shown = next((each for each in functions if each.listed), None) or Parameters(tools[0]["function"])
    arguments = [
        f"{to_json(parameter.name)}: {' or '.join(sorted(shown.types(parameter.schema))) or 'value'}"
        for parameter in shown.listed[:MAX_SHOWN_ARGUMENTS]
    ]
    return _ASK.format(name=shown.function, arguments=", ".join(arguments))


def with_definitions(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], ask: str = ""
) -> Messages:
    """Return messages whose system message has the definitions of tools, if there are any, and behind them `ask`."""
    changed = [dict(message) for message in messages]
    if not tools:
        return changed
    text = definitions_text(tools) + ask
    if changed and changed[0]["role"] == "system":
        changed[0]["content"] = f"{changed[0].get('content') or ''}\n\n{text}"
        return changed
    return [{"role": "system", "content": text}, *changed]


def definitions_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that defines tools where no template does."""
    return _DEFINE.format(definitions="\n".join(map(to_json, tools)))


def to_json(value: object) -> str:
    """Return `value` as JSON in the form that most templates write, with a space behind `,` and `:`."""
    return json.dumps(value, ensure_ascii=False)


def _num_bytes(tools: object) -> int:
    """Return the size of definitions as JSON; of those that are too large at least what is too much.

    Python takes many times as long for them as `orjson`, with the interpreter's lock.
    """
    with suppress(TypeError):  # definitions from Python may have what it does not write
        if (num_bytes := len(orjson.dumps(tools))) > MAX_TOOLS_BYTES:
            return num_bytes
    return len(to_json(tools).encode(errors="surrogatepass"))


def _check_tool(path: str, tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidValue(f"{path} is not an object; it must define a function.", param=path)
    kind, function = tool.get("type"), tool.get("function")
    if kind not in (None, "function"):
        raise UnsupportedParameter(
            f"{path}.type is {str(kind)[:100]!r}; only 'function' is supported: define the tool as a function.",
            param=f"{path}.type",
        )
    path = f"{path}.function"
    if not isinstance(function, dict):
        raise InvalidValue(f"{path} is missing; it must be an object with a name.", param=path)
    return check_function(path, function)


def check_function(path: str, function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool as templates get it, of the fields of its function, which are at `path`.

    Raises:
        InvalidValue: a field is wrong; the error names it.
    """
    name, description = function.get("name"), function.get("description")
    if name is None:
        raise InvalidValue(f"{path}.name is missing; {_NAME_RULE}.", param=f"{path}.name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{path}.name is {str(name)[:100]!r}; {_NAME_RULE}.",
            param=f"{path}.name",
        )
    if not isinstance(description, str | None):
        raise InvalidValue(f"{path}.description must be a text.", param=f"{path}.description")
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidValue(f"{path}.strict must be true or false.", param=f"{path}.strict")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or _depth(parameters) > MAX_DEPTH:
        raise InvalidValue(
            f"{path}.parameters must be a JSON schema, an object nested at most {MAX_DEPTH} deep.",
            param=f"{path}.parameters",
        )
    _check_parameters(f"{path}.parameters", parameters)
    kept = {key: value for key, value in function.items() if key != "strict" and value is not None}
    return {"type": "function", "function": {**kept, "parameters": parameters}}


def _check_parameters(path: str, schema: Mapping[str, Any]) -> None:
    """Check what the grammars and parsers of calls read of a schema; null is the same as leaving a field out."""
    given = {name: value for name, value in schema.items() if value is not None}
    if given.get("type", "object") != "object":
        raise InvalidValue(f"{path}.type is {str(given['type'])[:100]!r}; it must be 'object'.", param=path)
    for name in ("properties", "$defs", "definitions"):
        schemas = given.get(name, {})
        if not isinstance(schemas, dict) or not all(isinstance(each, dict | bool) for each in schemas.values()):
            raise InvalidValue(f"{path}.{name} must be an object of JSON schemas.", param=path)
    required = given.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise InvalidValue(f"{path}.required must be a list of names.", param=path)


def _as_text(arguments: str | Mapping[str, Any] | None) -> str:
    value = as_object(arguments)
    is_damaged = isinstance(arguments, str) and value == {"arguments": arguments}
    return str(arguments) if is_damaged else to_json(value)


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": as_object(function.get("arguments"))}
    return f"<tool_call>\n{to_json(call)}\n</tool_call>"


def _short_id(call_id: str, num_chars: int) -> str:
    if len(call_id) == num_chars and all(char in _ID_ALPHABET for char in call_id):
        return call_id
    number = int.from_bytes(blake2b(call_id.encode(errors="surrogatepass"), digest_size=16).digest())
    return "".join(_ID_ALPHABET[number // 62**place % 62] for place in range(num_chars))


def _depth(value: object) -> int:
    """Return how deeply objects and lists are nested, counted up to just above the limit."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        depth += any(isinstance(each, dict | list) for each in level)
        level = [each for each in inner if isinstance(each, dict | list)]
    return depth
