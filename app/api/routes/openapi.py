"""`GET /openapi.json`: the OpenAPI document, from the table of routes, the structs of bodies and the tables of bounds.

It is made at the first request. Bodies may have further fields, which are ignored and named in a header; a body's
`x-unsupported` lists those that are rejected, unless their values request nothing, and its `x-accepted` those that have
no effect and are not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from app import __version__
from app.api.body import schemas
from app.api.body.any_body import AnyBody
from app.api.body.field_table import FIELDS, Fate, rule_of
from app.api.body.parse_chat import MAX_MESSAGES
from app.api.routes.operations import Operation
from app.api.wire.framing import SSE
from app.contract import sampling_params
from app.contract.sampling_params import BOUNDS, PARAMETERS
from app.runtime.lazy_property import lazy_property

_IN_PATH = re.compile(r"{(\w+)}")
_CONVERTER = re.compile(r":\w+}")  # of a parameter in a path
_REF = "#/components/schemas/{name}"
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_DESCRIPTION = (
    "OpenAI's chat and completions on Quire. The WebSocket protocol quire.v1 on /ws is not described here. "
    "Limits that depend on the model, such as its context, are not part of the schemas."
)
_HELP = {each.name: each.help for each in PARAMETERS}
_HELP["max_completion_tokens"] = _HELP["max_tokens"]
# Keywords of the fields that are not sampling parameters, from the constants that their checks use.
_KEYWORDS: Mapping[str, Mapping[str, object]] = {
    "messages": {"minItems": 1, "maxItems": MAX_MESSAGES},
    "stop_token_ids": {"maxItems": sampling_params.MAX_STOP_TOKEN_IDS},
    "stop": {
        "maxItems": sampling_params.MAX_STOP_STRINGS,
        "minLength": 1,
        "maxLength": sampling_params.MAX_STOP_LENGTH,
    },
    "max_completion_tokens": BOUNDS["max_tokens"].keywords(),
    "top_logprobs": BOUNDS["logprobs"].keywords(),
    "logit_bias": {"maxProperties": sampling_params.MAX_LOGIT_BIAS},
    "priority": {"minimum": -schemas.MAX_PRIORITY, "maximum": schemas.MAX_PRIORITY},
    "cache_salt": {"minLength": 1, "maxLength": schemas.MAX_SALT_BYTES},
    "queue_timeout": {"minimum": 0},
    "timeout": {"exclusiveMinimum": 0},
}


class OpenApiPage:
    """The document of one server; `has_keys` says whether its routes need a key. Loop only."""

    def __init__(self, operations: Iterable[Operation], *, has_keys: bool) -> None:
        self._operations = tuple(operations)
        self._has_keys = has_keys

    async def show(self, request: Request) -> Response:
        """Answer with the document."""
        return Response(self._json, media_type="application/json")

    @lazy_property
    def _json(self) -> bytes:
        return orjson.dumps(document(self._operations, has_keys=self._has_keys))


def document(operations: Iterable[Operation], *, has_keys: bool) -> dict[str, object]:
    """Return the OpenAPI document of `operations`."""
    operations = tuple(operations)
    kinds: dict[type[msgspec.Struct], None] = {operation.errors.answer: None for operation in operations}
    for operation in operations:
        kinds |= dict.fromkeys((*operation.bodies, *([operation.answer] if operation.answer else [])))
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for kind in kinds:
        if issubclass(kind, AnyBody):
            _describe(components[kind.__name__])
            for fate, key in ((Fate.REFUSED, "x-unsupported"), (Fate.ACCEPTED, "x-accepted")):
                names = sorted(name for name in {*FIELDS, *kind.own_rules} if rule_of(name, kind).fate is fate)
                components[kind.__name__][key] = names
    paths: dict[str, dict[str, object]] = {}
    for operation in operations:
        path = _CONVERTER.sub("}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, path, has_keys=has_keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components, **({"securitySchemes": _KEYS} if has_keys else {})},
    }


def _operation(operation: Operation, path: str, *, has_keys: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "summary": operation.summary,
        "operationId": operation.handler.__name__ if path != "/health" else "health",
        "responses": {
            **_success(operation),
            **{status: _error(status, operation) for status in ("4XX", "5XX")},
        },
    }
    names = {"path": _IN_PATH.findall(path), "query": operation.query, "header": operation.headers}
    places = [(name, place) for place, found in names.items() for name in found]
    if places:
        fields["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
            for name, place in places
        ]
    if operation.bodies:
        bodies = [_ref(kind) for kind in operation.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        fields["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if has_keys and operation.needs_key:
        fields["security"] = [{name: []} for name in _KEYS]
    return fields


def _success(operation: Operation) -> dict[str, object]:
    found: dict[str, object] = {}
    if operation.answer is not None or operation.has_streams or not operation.can_be_empty:
        found["200"] = {"description": operation.summary, "content": _content(operation)}
    if operation.can_be_empty:
        found["204"] = {"description": "There is nothing to tell"}
    return found


def _content(operation: Operation) -> dict[str, object]:
    if operation.answer is None and not operation.has_streams:
        return {"text/plain": {"schema": {"type": "string"}}}
    content: dict[str, object] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": _ref(operation.answer)}
    if operation.has_streams:
        # A schema of server-sent events would be read by some as that of the whole stream, by others as that of each.
        for framing in operation.framings:
            content[framing.media_type.partition(";")[0]] = {} if framing is SSE else {"schema": {"type": "string"}}
    return content


def _error(status: str, operation: Operation) -> dict[str, object]:
    what = "The request is rejected" if status == "4XX" else "The server cannot answer"
    schema: dict[str, object] = _ref(operation.errors.answer)
    if status == "5XX":  # the health routes say their state in every response
        schema = {"type": "object"}
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, object]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _describe(schema: dict[str, Any]) -> None:
    """Say what the sampling parameters do, and add the bounds of fields to their types; null has none.

    Bounds that a body has already are its own.
    """
    for name, field in schema.get("properties", {}).items():
        if name in _HELP:
            field["description"] = _HELP[name]
        keywords = BOUNDS[name].keywords() if name in BOUNDS else _KEYWORDS.get(name, {})
        for kind in field.get("anyOf", [field]):
            if kind.get("type") not in ("null", "boolean"):
                kind.update({name: bound for name, bound in keywords.items() if name not in kind})
