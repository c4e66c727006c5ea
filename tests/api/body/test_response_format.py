"""`response_format`: OpenAI's, and what huggingface_hub and TGI made of it; nothing inside it is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette

from app.contract.errors import InvalidValue, RequestError
from app.contract.grammar import Grammar, GrammarKind
from tests.api.body.test_structured_output import ANY_OBJECT, SCHEMA, SOURCE, app, grammar, schema_format

__all__ = ["app"]  # a fixture


@pytest.mark.parametrize(
    ("given", "kind", "source"),
    [
        ({"type": "json_object", "value": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"type": "json_object", "value": None}, GrammarKind.JSON_SCHEMA, ANY_OBJECT),
        ({"type": "json_object", "json_schema": None, "strict": True}, GrammarKind.JSON_SCHEMA, ANY_OBJECT),
        ({"type": "json", "value": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"type": "json", "value": SOURCE}, GrammarKind.JSON_SCHEMA, SOURCE),
        ({"type": "regex", "value": "a+"}, GrammarKind.REGEX, "a+"),
    ],
)
async def test_a_value_is_a_schema_or_a_regular_expression(
    app: Starlette, given: dict[str, Any], kind: GrammarKind, source: str
):
    assert await grammar(app, response_format=given) == Grammar(kind, source)


async def test_a_text_is_not_limited(app: Starlette):
    assert await grammar(app, response_format={"type": "text", "json_schema": None}) is None


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"type": "json"}, "response_format.value", "missing"),
        ({"type": "regex", "value": {}}, "response_format.value", "got `object`"),
        ({"type": "regex", "value": "(?=a)"}, "response_format.value", "Look-around"),
        ({"type": "json_object", "value": {}, "schema": {}}, "response_format.value", "send one"),
        ({"type": "json_object", "values": {}}, "response_format.values", "did you mean 'value'"),
        ({"type": "text", "schema": {}}, "response_format.schema", "Expected `null`"),
        ({"type": "json_object", "a": None}, "response_format.a", "Fields here are never ignored"),
        ({**schema_format({}), "schema": {}}, "response_format.schema", "Expected `null`"),
        *(
            (given, "response_format.json_schema", 'missing; send the schema there: {"type": "json_schema", "json_sch')
            for given in (
                {"type": "json_schema"},
                {"type": "json_schema", "schema": SCHEMA},
                {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA},
                {"type": "json_schema", "value": SCHEMA, "json_schema": None},
            )
        ),
        (
            {"type": "json_schema", "json_schema": SCHEMA},
            "response_format.json_schema.schema",
            'missing; send the schema there: {"type": "json_schema", "json_schema": {"schema": ...}}.',
        ),
        ({"type": "json_schema", "json_schema": 5}, "response_format.json_schema", "Expected `object`"),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "schem": {}}},
            "response_format.json_schema.schem",
            "is unknown; did you mean 'schema'; leave it out",
        ),
    ],
)
async def test_what_is_wrong_inside_is_rejected_with_its_path(
    app: Starlette, given: dict[str, Any], param: str, words: str
):
    with pytest.raises(RequestError) as caught:
        await grammar(app, response_format=given)
    assert (caught.value.param, caught.value.http_status) == (param, 400)
    assert words in caught.value.message, caught.value.message


@pytest.mark.parametrize("text", ["x" * 60_000, "short"])
async def test_descriptions_make_no_other_grammar_and_do_not_count_for_its_size(app: Starlette, text: str):
    described = {"title": text, **SCHEMA, "properties": {"b": {**SCHEMA["properties"]["b"], "description": text}}}
    described["properties"]["a"] = {"examples": [text], **SCHEMA["properties"]["a"]}
    for schema in (described, json.dumps(described)):
        assert await grammar(app, response_format=schema_format(schema)) == Grammar(GrammarKind.JSON_SCHEMA, SOURCE)
    with pytest.raises(InvalidValue, match=r"^response_format\.json_schema\.schema has \d+ bytes; at most 262144 are"):
        await grammar(app, response_format=schema_format({**described, "default": ["y" * 30_000] * 9}))
