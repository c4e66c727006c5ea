"""The tools of a chat request and the client's choice among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.grammar import Grammar, GrammarKind, StructuredOutputs
from app.text.answer.answer_format import AnswerFormat
from app.text.calls.call_grammar import CallGrammar
from app.text.calls.formats import CallFormat
from app.text.calls.tool_schemas import ToolSchemas, Unwritable
from app.text.calls.tools import check_tools, to_json
from app.text.grammar.grammar_sources import MAX_SOURCE_BYTES, grammar_of, rule_of
from app.text.grammar.schema_keywords import effective

NONE, AUTO, REQUIRED, NAMED = "none", "auto", "required", "named"
_NAMED_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
# What `choose_tools` accepts as the choice, for the OpenAPI document.
CHOICE_SCHEMA: Mapping[str, object] = {
    "anyOf": [
        {"enum": [NONE, AUTO, REQUIRED]},
        _NAMED_SCHEMA,
        {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "allowed_tools": {
                    "type": "object",
                    "properties": {
                        "mode": {"enum": [AUTO, REQUIRED]},
                        "tools": {"type": "array", "items": _NAMED_SCHEMA, "minItems": 1},
                    },
                    "required": ["mode", "tools"],
                },
            },
            "required": ["type", "allowed_tools"],
        },
    ]
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may or must call.

    Attributes:
        definitions: what the prompt has of them; empty if the answer must call none.
        called: the definitions among which the answer must choose; empty if it need not call any.
        strict: the names of the tools whose schemas an optional call must satisfy.
        is_parallel: whether it may call several.
        deferred: definitions that the prompt has elsewhere, if at all: an answer may call these tools, too.
        paths: where the client has the schema of each tool, by name.
    """

    definitions: tuple[dict[str, Any], ...] = ()
    called: tuple[dict[str, Any], ...] = ()
    strict: frozenset[str] = frozenset()
    is_parallel: bool = True
    deferred: tuple[dict[str, Any], ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> tuple[dict[str, Any], ...]:
        """The definitions of all tools that an answer may call."""
        return self.definitions + self.deferred

    @property
    def schemas(self) -> ToolSchemas | None:
        """The tools, as the parser of the answer needs them; None if there is nothing to parse."""
        if not self.known:
            return None
        return ToolSchemas(self.known, is_calls_alone=bool(self.called), is_parallel=self.is_parallel)

    @property
    def num_chars(self) -> int:
        """The number of characters of the definitions in the prompt, at least."""
        return len(to_json(self.definitions)) if self.definitions else 0

    def grammar(self, answers: AnswerFormat, outputs: StructuredOutputs | None = None) -> Grammar | None:
        """Return the grammar of an answer; None if it may be any text. `outputs` say what it must be if it is no call.

        An answer that must call a tool is calls alone. Else calls are checked where a tool is strict, where there may
        be one at most, and beside `outputs`. It has one call at most where the model's template takes no several.

        Raises:
            InvalidValue: `outputs` are wrong, or the answer must call a tool; the grammar is too large, or the model's
                calls cannot satisfy a schema.
        """
        if outputs is not None and self.called:
            raise InvalidValue(
                "structured_outputs and tool_choice both say what the answer must be; send one of them, or tool_choice "
                "'auto', with which the answer is calls or the other.",
                param="structured_outputs",
            )
        other = None if outputs is None else grammar_of(outputs)
        is_checked = self.called or self.strict or (self.known and (other is not None or not self.is_parallel))
        if answers.calls is None or not is_checked:
            return other
        with self._naming_tools():
            source = self._source(answers.calls, answers, other)
        if source is None:
            return None
        if (num_bytes := len(source.encode(errors="surrogatepass"))) > MAX_SOURCE_BYTES:
            what, cure = "tools has", "tool_choice 'auto' without strict"
            if other is not None:
                what, cure = "tools and the grammar beside them have", "a smaller grammar"
            raise InvalidValue(
                f"{what} {num_bytes} bytes as a grammar; at most {MAX_SOURCE_BYTES} are allowed. Send fewer or "
                f"shorter definitions, or {cure}.",
                param="tools",
            )
        if other is not None and other.kind is GrammarKind.LARK:  # which has a lower limit of ambiguity
            return replace(other, source=source)
        return Grammar(GrammarKind.CALLS, source)

    def parts(self, answers: AnswerFormat) -> Iterator[tuple[str, Grammar]]:
        """Yield a grammar of each checked tool alone, with the path of its schema: to find the one that is wrong."""
        for tool in self._checked if answers.calls is not None else ():
            alone = replace(self, definitions=(tool,), called=(tool,), deferred=())
            if (grammar := alone.grammar(answers)) is not None:
                yield self.paths[_name_of(tool)], grammar

    @property
    def _checked(self) -> tuple[dict[str, Any], ...]:
        """The tools of which a call satisfies the schema."""
        return self.called or tuple(tool for tool in self.known if _name_of(tool) in self.strict)

    def _source(self, calls: CallFormat, answers: AnswerFormat, other: Grammar | None) -> str | None:
        checked = {_name_of(tool): _with_parameters(tool, _effective(tool)) for tool in self._checked}
        tools = [checked.get(_name_of(tool)) or _with_parameters(tool, {"type": "object"}) for tool in self.known]
        grammar = CallGrammar(calls.syntax, list(checked.values()) if self.called else tools, answers.special_tokens)
        is_parallel = self.is_parallel and answers.takes_several_calls
        if self.called:
            source: str | None = grammar.required(is_parallel=is_parallel)
        elif other is not None:
            source = grammar.beside(rule_of(other), is_parallel=is_parallel)
        else:
            source = grammar.optional(is_parallel=is_parallel)
        return source

    @contextmanager
    def _naming_tools(self) -> Iterator[None]:
        """Name the definition whose schema cannot be checked."""
        try:
            yield
        except Unwritable as error:
            path = self.paths[error.function]
            raise InvalidValue(
                f"{path} {error.reason}. Change it, or send tool_choice 'auto' without strict.", param=path
            ) from None


NO_TOOLS = ToolUse()


def choose_tools(tools: object, choice: object, is_parallel: bool | None, calls: CallFormat | None) -> ToolUse:
    """Check `tools`, `tool_choice` and `parallel_tool_calls`, for a model whose calls have the format `calls`.

    Raises:
        InvalidValue, UnsupportedParameter: a value is wrong, or the model's calls have no known format.
    """
    given: list[Any] = tools if isinstance(tools, list) else []
    definitions = tuple(check_tools(tools)) if tools not in (None, []) else ()
    names = tuple(map(_name_of, definitions))
    mode, chosen = _read_choice(choice)
    if not definitions and mode not in (NONE, AUTO):
        raise InvalidValue("tool_choice needs tools; send tools, or leave it out.", param="tool_choice")
    if mode == NONE or not definitions:
        return NO_TOOLS
    for name in chosen:
        if name not in names:
            raise InvalidValue(f"tool_choice names {name[:100]!r}, which is not in tools.", param="tool_choice")
    among = tuple(tool for tool in definitions if _name_of(tool) in chosen) if chosen else definitions
    called = () if mode == AUTO else among
    if mode != NAMED:
        definitions = among
    if called:
        check_required(calls)
    strict = frozenset(_name_of(tool) for tool in given if tool["function"].get("strict"))
    paths = {name: f"tools[{index}].function.parameters" for index, name in enumerate(names)}
    return ToolUse(definitions, called, strict, is_parallel is not False and mode != NAMED, paths=paths)


def check_required(calls: CallFormat | None) -> None:
    """Check that a call can be required of a model whose calls have the format `calls`.

    Raises:
        UnsupportedParameter: the format is not known.
    """
    if calls is None:
        raise UnsupportedParameter(
            "tool_choice: the format of this model's calls is not known, so none can be required; "
            "use 'auto', or start the server with --tool-parser.",
            param="tool_choice",
        )


def _name_of(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _effective(tool: Mapping[str, Any]) -> Any:
    """Return the schema of a tool's parameters without what excludes nothing."""
    try:
        schema = effective(tool["function"]["parameters"])
    except InvalidValue as error:
        raise Unwritable(_name_of(tool), f"is rejected: {error.message.rstrip('.')}") from None
    if schema is False:
        raise Unwritable(_name_of(tool), "is satisfied by no arguments")
    return schema


def _with_parameters(tool: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "parameters": schema}}


def _read_choice(choice: object) -> tuple[str, list[str]]:
    """Return the mode of `tool_choice`, and the names of the tools that it is limited to; none if it is not."""
    if choice is None or choice in (NONE, AUTO, REQUIRED):
        return AUTO if choice is None else str(choice), []
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
        names = [_named(tool) for tool in tools] if isinstance(tools, list) else []
        if mode not in (AUTO, REQUIRED) or not names or None in names:
            raise InvalidValue(
                'tool_choice.allowed_tools must have a mode, "auto" or "required", and a list of tools such as '
                '{"type": "function", "function": {"name": "..."}}.',
                param="tool_choice",
            )
        return str(mode), [name for name in names if name is not None]
    if (name := _named(choice)) is not None:
        return NAMED, [name]
    raise InvalidValue(
        'tool_choice must be \'none\', \'auto\', \'required\', {"type": "function", "function": {"name": "..."}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}.',
        param="tool_choice",
    )


def _named(choice: object) -> str | None:
    """Return the name of the function that an object names; None if it names none."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
