"""The tools of a request for a response: what its prompt says of them, and what its answer calls them.

The prompt has functions alone. A namespace is unpacked, a tool that takes a text is a function with one `input`, and
tools that OpenAI runs itself are left out. A table leads back from the name in the prompt to what the client has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NoReturn

import orjson

from app.api.responses.asked import CalledTool, CalledTools, ToolKind
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.answer.tool_use import AUTO, NAMED, NO_TOOLS, NONE, REQUIRED, ToolUse, check_required
from app.text.calls.formats import CallFormat
from app.text.calls.tools import MAX_TOOLS, check_function, check_number, check_size

MAX_NAME_CHARS = 64  # of a namespace and a name
MAX_CHOICE_BYTES = 32 * 2**10  # of `tool_choice`, which the first events of a stream repeat
_HASH_CHARS = 8
TOOL_SEARCH = "tool_search"
_HOSTED = (
    "file_search", "code_interpreter", "image_generation", "mcp", "programmatic_tool_calling", "local_shell", "shell",
    "apply_patch",
)  # fmt: skip
_HOSTED_BEGINNINGS = ("web_search", "computer")
_OURS = ("function", "custom", "namespace", TOOL_SEARCH)
_IN_NAMESPACE = ("function", "custom")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
# What else the tools of OpenAI may have, and says nothing to this server.
_SILENT_FIELDS = ("type", "defer_loading", "output_schema", "allowed_callers", "async")
_OF_TEXT: Mapping[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_OF_SEARCH: Mapping[str, object] = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
}
# Clients require these fields of the functions in a response.
_FUNCTION_DEFAULTS: Final = {"description": None, "parameters": None, "strict": False}
_SEARCH_HELP = "Searches for further tools."
# What is accepted, for the OpenAPI document.
_NAMED_TOOL: Mapping[str, object] = {
    "type": "object",
    "properties": {"type": {"enum": ["function", "custom"]}, "name": {"type": "string"}},
    "required": ["type", "name"],
}
TOOLS_SCHEMA: Mapping[str, object] = {
    "anyOf": [
        {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": [*_OURS, *_HOSTED, "web_search", "computer"]},
                    "name": {"type": "string"},
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                    "defer_loading": {"type": ["boolean", "null"]},
                    "tools": {"type": "array", "items": _NAMED_TOOL},
                },
                "required": ["type"],
            },
        },
        {"type": "null"},
    ]
}
CHOICE_SCHEMA: Mapping[str, object] = {
    "anyOf": [
        {"enum": [NONE, AUTO, REQUIRED, None]},
        _NAMED_TOOL,
        {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "mode": {"enum": [AUTO, REQUIRED]},
                "tools": {"type": "array", "items": _NAMED_TOOL, "minItems": 1},
            },
            "required": ["type", "mode", "tools"],
        },
    ]
}
_CHOICE_RULE = (
    'it must be \'none\', \'auto\', \'required\', {"type": "function", "name": "..."} or '
    '{"type": "allowed_tools", "mode": "auto", "tools": [...]}'
)


def repeated_tools(given: Iterable[Any]) -> list[Any]:
    """Return the tools that a client sent, once checked, as its response repeats them: functions with all fields."""
    return [{**tool, **_missing_from(tool)} if tool["type"] == "function" else tool for tool in given]


def _missing_from(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _FUNCTION_DEFAULTS.items() if name not in tool}


class RequestTools:
    """The tools of one request: first those of its `tools`, then those that its items bring. One thread at a time.

    Attributes:
        ignored: the paths of the tools that are left out, and of unknown fields of the others.

    Raises:
        InvalidValue, UnsupportedParameter: a tool is wrong; the path names it.
    """

    def __init__(self, given: object = None) -> None:
        self.ignored: list[str] = []
        self._first: list[dict[str, Any]] = []
        self._later: list[dict[str, Any]] = []
        self._unloaded: set[str] = set()
        self._strict: set[str] = set()
        self._paths: dict[str, str] = {}
        self._called: dict[str, CalledTool] = {}
        self._names: dict[tuple[str | None, str], str] = {}
        self._definitions: dict[str, dict[str, Any]] = {}
        self._has_hosted = False
        if given is None:
            return
        if not isinstance(given, list):
            raise InvalidValue(f"tools is not a list; it must be a list of at most {MAX_TOOLS} tools.", param="tools")
        check_number(len(given))
        check_size(given)  # with the tools that are left out: the response repeats all
        for index, tool in enumerate(given):
            self._add_first(f"tools[{index}]", tool)

    @property
    def called(self) -> CalledTools:
        """The table of the tools, as the answer needs it."""
        return CalledTools(self._called)

    def add_found(self, path: str, given: list[Any]) -> list[dict[str, Any]]:
        """Add the tools that an item at `path` brings; return their definitions there, for the prompt.

        Those that the request has already are the same tools, and keep the definitions that they have.
        """
        found = []
        for index, tool in enumerate(given):
            for each, namespace, fields in self._each(f"{path}[{index}]", tool):
                definition = _definition(each, fields)
                name = self._names.get((namespace, definition["function"]["name"]))
                if name is None:
                    name = self._register(each, namespace, fields, self._later)
                self._unloaded.discard(name)
                found.append(_named(definition, name))
        check_size(found, path)
        return found

    def name_in_prompt(self, name: str, namespace: str | None = None) -> str:
        """Return the name that the prompt has for a tool, which the request may not have any longer."""
        return self._names.get((namespace, name)) or _joined(namespace, name)

    def use(self, choice: object, is_parallel: bool | None, calls: CallFormat | None) -> ToolUse:
        """Return the tools that the answer may or must call, for a model whose calls have the format `calls`.

        The prompt has the definitions of all of them, whatever the choice is, so that its beginning stays in the cache.

        Raises:
            InvalidValue, UnsupportedParameter: `tool_choice` is wrong, the tools are too large, or the format of the
                model's calls is not known.
        """
        check_size(self._later)
        mode, chosen = self._read_choice(choice)
        if mode == NONE:
            return NO_TOOLS
        loaded = [tool for tool in self._first + self._later if tool["function"]["name"] not in self._unloaded]
        if not loaded and mode != AUTO:
            raise InvalidValue("tool_choice needs tools; send tools, or leave it out.", param="tool_choice")
        called = () if mode == AUTO else tuple(self._definitions[name] for name in chosen) or tuple(loaded)
        if called:
            check_required(calls)
        return ToolUse(
            tuple(self._first),
            called,
            frozenset(self._strict),
            is_parallel is not False and mode != NAMED,
            tuple(self._later),
            self._paths,
        )

    def _add_first(self, path: str, tool: object) -> None:
        for each, namespace, fields in self._each(path, tool):
            if (namespace, str(fields.get("name"))) in self._names:
                raise InvalidValue(
                    f"{each}.name is {fields['name']!r}, as that of another tool; names must differ.",
                    param=f"{each}.name",
                )
            is_deferred = fields.get("defer_loading") is True
            name = self._register(each, namespace, fields, self._later if is_deferred else self._first)
            if is_deferred:
                self._unloaded.add(name)

    def _each(self, path: str, tool: object) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
        """Yield the path, the namespace and the fields of each function that a tool is or has; none if it is hosted."""
        if not isinstance(tool, dict):
            raise InvalidValue(f"{path} is not an object; it must define a tool.", param=path)
        kind = _kind_of(path, tool)
        if _is_hosted(kind) or (kind == TOOL_SEARCH and tool.get("execution") != "client"):
            self._has_hosted = True
            self.ignored.append(path)
        elif kind != "namespace":
            yield path, None, {**tool, "name": TOOL_SEARCH} if kind == TOOL_SEARCH else tool
        else:
            inner = tool.get("tools")
            check_function(path, {"name": tool.get("name")})
            if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
                raise InvalidValue(f"{path}.tools must be a list of tools.", param=f"{path}.tools")
            for index, each in enumerate(inner):
                own = f"{path}.tools[{index}]"
                _kind_of(own, each, _IN_NAMESPACE)
                yield own, tool["name"], each

    def _register(self, path: str, namespace: str | None, fields: dict[str, Any], place: list[dict[str, Any]]) -> str:
        """Add one function to the table and to `place`; return its name in the prompt."""
        kind: ToolKind = fields["type"]
        definition = _definition(path, fields)
        own_name = definition["function"]["name"]
        name = _joined(namespace, own_name)
        if name in self._called:
            name = _shortened(namespace, own_name)
        definition = _named(definition, name)
        self._names[namespace, own_name] = name
        self._called[name] = CalledTool(kind, own_name, namespace)
        self._definitions[name] = definition
        self._paths[name] = f"{path}.parameters"
        if kind == "function" and fields.get("strict") is True:
            self._strict.add(name)
        known = (
            *_FUNCTION_FIELDS,
            *_SILENT_FIELDS,
            *{"custom": ("format",), TOOL_SEARCH: ("execution",)}.get(kind, ()),
        )
        self.ignored += [f"{path}.{field}" for field in fields if field not in known]
        place.append(definition)
        check_number(len(self._called))
        return name

    def _read_choice(self, choice: object) -> tuple[str, list[str]]:
        """Return the mode of `tool_choice`, and the names in the prompt of the tools that it is limited to, if any."""
        if choice is None or choice in (NONE, AUTO, REQUIRED):
            return AUTO if choice is None else str(choice), []
        if not isinstance(choice, dict):
            raise InvalidValue(f"tool_choice is {choice!r:.100}; {_CHOICE_RULE}.", param="tool_choice")
        if (num_bytes := len(orjson.dumps(choice))) > MAX_CHOICE_BYTES:
            raise InvalidValue(
                f"tool_choice has {num_bytes} bytes as JSON; at most {MAX_CHOICE_BYTES} are allowed.",
                param="tool_choice",
            )
        if choice.get("type") != "allowed_tools":
            return NAMED, [self._chosen(choice)]
        mode, given = choice.get("mode"), choice.get("tools")
        if mode not in (AUTO, REQUIRED) or not isinstance(given, list) or not given:
            raise InvalidValue(
                'tool_choice must have a mode, "auto" or "required", and a list of tools such as '
                '{"type": "function", "name": "..."}.',
                param="tool_choice",
            )
        ours = [each for each in given if not (isinstance(each, dict) and _is_hosted(each.get("type")))]
        names = list(dict.fromkeys(map(self._chosen, ours)))
        if mode == REQUIRED and not names:
            self._reject_hosted(given[0]["type"])
        return mode, names

    def _chosen(self, choice: object) -> str:
        """Return the name in the prompt of the tool that an object names."""
        fields = choice if isinstance(choice, dict) else {}
        kind, name, namespace = fields.get("type"), fields.get("name"), fields.get("namespace")
        if _is_hosted(kind):
            self._reject_hosted(kind)
        if kind == TOOL_SEARCH:
            name = TOOL_SEARCH
        if kind not in ("function", "custom", TOOL_SEARCH) or not isinstance(name, str):
            raise InvalidValue(f"tool_choice is {choice!r:.100}; {_CHOICE_RULE}.", param="tool_choice")
        found = self._names.get((namespace, name)) if isinstance(namespace, str | None) else None
        if namespace is None and found is None and name in self._called:
            found = name
        if found is None or self._called[found].kind != kind:
            raise InvalidValue(
                f"tool_choice names the {kind} {name[:100]!r}, which is not in tools.", param="tool_choice"
            )
        return found

    def _reject_hosted(self, kind: object) -> NoReturn:
        raise UnsupportedParameter(
            f"tool_choice names {str(kind)[:100]!r}, a tool that OpenAI runs and this server does not have; choose "
            "another one, or leave it out.",
            param="tool_choice",
        )


def _kind_of(path: str, tool: Mapping[str, Any], allowed: tuple[str, ...] = _OURS) -> str:
    """Return the type of a tool, which is one of `allowed` or, at the top, hosted."""
    kind = tool.get("type")
    if kind in allowed or (allowed is _OURS and _is_hosted(kind)):
        return str(kind)
    if kind is None:
        raise InvalidValue(f"{path}.type is missing; it must be one of {', '.join(allowed)}.", param=f"{path}.type")
    raise UnsupportedParameter(
        f"{path}.type is {str(kind)[:100]!r}; it must be one of {', '.join(allowed)}.", param=f"{path}.type"
    )


def _is_hosted(kind: object) -> bool:
    """Return whether a type is that of a tool that OpenAI runs, or that only its own models write."""
    return isinstance(kind, str) and (kind in _HOSTED or kind.startswith(_HOSTED_BEGINNINGS))


def _definition(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked definition of the function that a tool at `path` is."""
    return check_function(path, _function_of(path, fields))


def _named(definition: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a definition with another name."""
    return {**definition, "function": {**definition["function"], "name": name}}


def _function_of(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the function that a tool is in the prompt."""
    kind = fields["type"]
    if kind == "function":
        return {name: value for name, value in fields.items() if name in _FUNCTION_FIELDS}
    description = fields.get("description")
    if kind == TOOL_SEARCH:
        parameters = fields.get("parameters")
        return {
            "name": TOOL_SEARCH,
            "description": _SEARCH_HELP if description is None else description,
            "parameters": dict(_OF_SEARCH) if parameters is None else parameters,
        }
    described = {} if description is None else {"description": description}
    form = fields.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar" and isinstance(description, str | None):
        if not isinstance(form.get("definition"), str):
            raise InvalidValue(f"{path}.format.definition must be a text.", param=f"{path}.format.definition")
        rule = f"The input must match this grammar ({form.get('syntax')!s:.20}):\n{form['definition']}"
        described = {"description": "\n\n".join(filter(None, (description, rule)))}
    return {"name": fields.get("name"), **described, "parameters": dict(_OF_TEXT)}


def _joined(namespace: str | None, name: str) -> str:
    """Return the name of a tool in the prompt, if no other has it."""
    if namespace is None:
        return name
    joined = f"{namespace}__{name}"
    return joined if len(joined) <= MAX_NAME_CHARS else _shortened(namespace, name)


def _shortened(namespace: str | None, name: str) -> str:
    """Return a name that is short, and only this tool's."""
    digest = blake2b(f"{namespace}\0{name}".encode(errors="surrogatepass"), digest_size=_HASH_CHARS // 2).hexdigest()
    whole = name if namespace is None else f"{namespace}__{name}"
    return f"{whole[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
