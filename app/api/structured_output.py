"""The fields of a request that say what its answer must be: OpenAI's, vLLM's, and those of other servers.

They all become one grammar, which is compiled before the request is submitted. An error names the client's own field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec

from app.api.context import ApiContext
from app.api.response_format import (
    JsonSchemaFormat,
    ResponseFormat,
    StructuredOutputFields,
    TextFormat,
    VllmOutputs,
)
from app.contract.errors import InvalidValue, RequestError
from app.contract.grammar import Grammar, ReasoningMarks, StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.text.grammar.answer_rules import answer_rules
from app.text.grammar.cache import Lease
from app.text.grammar.fence import check_grammar, check_schema
from app.text.grammar.grammar_sources import ANY_OBJECT, grammar_of
from app.text.reasoning_marks import ReasoningStart
from app.text.tool_choice import NO_TOOLS, ToolUse

# Fields with one value, and what they are in vLLM's `structured_outputs`.
SINGLE_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
_NAMES = StructuredOutputs.__dataclass_fields__
MAX_PARTS = 8
"""Grammars that one rejected request compiles at most, to say which of them is at fault."""


class Requested(NamedTuple):
    """What the answer must be, and the path of the client's field that says so."""

    outputs: StructuredOutputs
    path: str

    def beside(self, tools: ToolUse) -> Requested | None:
        """Return itself, or None for a `response_format` where a call is required.

        Clients of agents send `response_format` with every request, for the text that comes after the calls.
        """
        return None if tools.called and self.path.startswith("response_format") else self


class Prepared(NamedTuple):
    """The rules of an answer as the engine needs them, and the lease of its grammar."""

    grammar: Grammar | None
    reasoning: ReasoningMarks | None
    lease: Lease | None


def requested_outputs(body: StructuredOutputFields) -> Requested | None:
    """Return what a body says about the answer; None if nothing. Any thread.

    Raises:
        InvalidValue: a field is wrong, or two say it.
    """
    found = [
        Requested(StructuredOutputs(**{kind: value}), name)
        for name, kind in SINGLE_FIELDS.items()
        if (value := getattr(body, name)) is not None
    ]
    if body.structured_outputs is not None:
        found.append(_of_structured(body.structured_outputs))
    if body.response_format is not None and (requested := _of_response_format(body.response_format)) is not None:
        found.append(requested)
    if len(found) > 1:
        names = " and ".join(one.path.partition(".")[0] for one in found[:2])
        raise InvalidValue(f"{names} both say what the answer must be; send one of them.", param=found[1].path)
    return found[0] if found else None


def prepare(
    requested: Requested | None,
    params: SamplingParams,
    context: ApiContext,
    account: str,
    start: ReasoningStart | None,
    tools: ToolUse = NO_TOOLS,
) -> Prepared:
    """Compile the grammar of an answer, and lease it for `account`. Blocks.

    `start` says how the answer's reasoning begins; None if it has none. `tools` are those that it may or must call.

    Raises:
        InvalidValue: the grammar is rejected, or other parameters contradict it.
        UnsupportedParameter: the model supports no grammars, or none with its reasoning.
        Overloaded: too many different grammars are in use, many of them by this account.
    """
    requested = None if requested is None else requested.beside(tools)
    try:
        grammar = tools.grammar(context.text.answers, None if requested is None else requested.outputs)
        if grammar is not None:
            _check_cost(grammar, requested, tools)
        rules = answer_rules(grammar, params, start)
        if rules.grammar is None:
            return Prepared(None, rules.reasoning, None)
        lease = _leased(rules.grammar, requested, context, account, tools)
    except RequestError as error:
        if isinstance(error, InvalidValue):
            context.grammars.count_failure("refused")
        raise _named(error, _path(requested, tools)) from None
    return Prepared(replace(rules.grammar, param=_path(requested, tools)), rules.reasoning, lease)


def _check_cost(grammar: Grammar, requested: Requested | None, tools: ToolUse) -> None:
    """Reject what the fence rejects: of the client's own grammar, and of the schemas of tools."""
    if requested is not None:
        check_grammar(grammar_of(requested.outputs) if tools.definitions else grammar)
    for path, schema in tools.checked_schemas():
        try:
            check_schema(schema)
        except InvalidValue as error:
            raise _named(error, path) from None


def _leased(grammar: Grammar, requested: Requested | None, context: ApiContext, account: str, tools: ToolUse) -> Lease:
    """Lease a grammar; if it is rejected and made of several parts, name the one at fault."""
    try:
        return context.grammars.lease(grammar, account)
    except InvalidValue:
        if tools.definitions:
            _reject_part(requested, context, account, tools)
        raise


def _path(requested: Requested | None, tools: ToolUse) -> str:
    """Return the path of the field that an answer's grammar comes from."""
    if requested is not None:
        return requested.path
    return "tools" if tools.definitions else "structured_outputs"


def _reject_part(requested: Requested | None, context: ApiContext, account: str, tools: ToolUse) -> None:
    """Reject the other field or the tool whose own grammar is rejected, if one of the first `MAX_PARTS` is."""
    parts = list(tools.parts(context.text.answers))
    if requested is not None:
        parts.insert(0, (requested.path, grammar_of(requested.outputs)))
    for path, grammar in parts[:MAX_PARTS]:
        try:
            context.grammars.lease(grammar, account).release()
        except InvalidValue as error:
            raise _named(error, path) from None
        except RequestError:
            return  # it cannot be found now; the rejection of the whole stands


def _named(error: RequestError, path: str) -> RequestError:
    """Return an error about a grammar that names the client's field."""
    if error.param is None:
        return type(error)(f"{path} is rejected: {error.message}", param=path)
    if error.param in _NAMES or error.param == "structured_outputs":
        ours = error.param
        message = f"{path}{error.message.removeprefix(ours)}" if error.message.startswith(f"{ours} ") else error.message
        return type(error)(message, param=path)
    return error


def _of_structured(fields: VllmOutputs) -> Requested:
    """Read vLLM's `structured_outputs`."""
    given = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    outputs = StructuredOutputs(**given)
    return Requested(outputs, f"structured_outputs.{outputs.given[0]}")


def _of_response_format(fields: ResponseFormat) -> Requested | None:
    """Read OpenAI's `response_format`."""
    if isinstance(fields, JsonSchemaFormat):
        schema = fields.json_schema.schema
        return Requested(StructuredOutputs(json=schema), "response_format.json_schema.schema")
    if isinstance(fields, TextFormat):
        return None
    if fields.schema is None:
        return Requested(StructuredOutputs(json=ANY_OBJECT), "response_format")
    return Requested(StructuredOutputs(json=fields.schema), "response_format.schema")
