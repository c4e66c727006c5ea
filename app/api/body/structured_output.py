"""The fields of a request that say what its answer must be: OpenAI's, vLLM's, and those of other servers.

They all become one grammar, which is compiled before the request is submitted. An error names the client's own field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from app.api.body.response_format import (
    JsonFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
    StructuredOutputFields,
    TextFormat,
    VllmOutputs,
)
from app.api.http.context import ApiContext
from app.contract.errors import GrammarTooCostly, InvalidValue, QuireError, RateLimitExceeded, RequestError
from app.contract.grammar import Grammar, StructuredOutputs
from app.text.answer.answer_demand import AnswerDemand, Requested
from app.text.grammar.cache import GrammarCache
from app.text.grammar.grammar_entries import Lease
from app.text.grammar.grammar_sources import ANY_OBJECT

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


def requested_outputs(body: StructuredOutputFields) -> Requested | None:
    """Return the outputs that a body requests; None if it requests none. Any thread.

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


async def lease(grammar: Grammar, demand: AnswerDemand, context: ApiContext, account: str) -> Lease:
    """Compile the grammar of an answer for `account`, after a trial, and keep it. Cancel-safe. Loop only.

    If it is rejected and made of several parts, the error names the one at fault.

    Raises:
        InvalidValue: the grammar is rejected.
        UnsupportedParameter: the model supports no grammars.
        Overloaded: too many different grammars are in use, many of them by this account.
        RateLimitExceeded: the account's grammars cost too much.
    """
    with naming(context.grammars, demand.path):
        try:
            return await context.grammar_trials.lease(grammar, account)
        except GrammarTooCostly:
            raise
        except InvalidValue:
            await _reject_part(demand, context, account)
            raise


async def _reject_part(demand: AnswerDemand, context: ApiContext, account: str) -> None:
    """Reject the other field or the tool whose own grammar is rejected, if one of the first parts is."""
    for path, grammar in await context.threads.run(demand.parts, account=account):
        try:
            (await context.grammar_trials.lease(grammar, account)).release()
        except InvalidValue as error:
            raise _named(error, path) from None
        except QuireError:
            return  # it cannot be found now; the rejection of the whole stands


@contextmanager
def naming(grammars: GrammarCache, path: str) -> Iterator[None]:
    """Name the client's field, which is at `path`, in errors about a grammar, and count rejections. Any thread."""
    try:
        yield
    except RateLimitExceeded:
        raise
    except RequestError as error:
        if isinstance(error, InvalidValue):
            grammars.count_failure("refused")
        raise _named(error, path) from None


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
    """Read OpenAI's `response_format`, and what TGI made of it."""
    requested = _of_format(fields)
    return None if requested is None else requested._replace(yields_to_calls=True)


def _of_format(fields: ResponseFormat) -> Requested | None:
    match fields:
        case TextFormat():
            return None
        case JsonSchemaFormat():
            return Requested(StructuredOutputs(json=fields.json_schema.schema), "response_format.json_schema.schema")
        case RegexFormat():
            return Requested(StructuredOutputs(regex=fields.value), "response_format.value")
        case JsonFormat():
            return Requested(StructuredOutputs(json=fields.value), "response_format.value")
    if fields.schema is not None and fields.value is not None:
        raise InvalidValue(
            "response_format has schema and value, which both say what the answer must be; send one of them.",
            param="response_format.value",
        )
    if fields.value is not None:
        return Requested(StructuredOutputs(json=fields.value), "response_format.value")
    if fields.schema is not None:
        return Requested(StructuredOutputs(json=fields.schema), "response_format.schema")
    return Requested(StructuredOutputs(json=ANY_OBJECT), "response_format")
