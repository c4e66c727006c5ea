"""The OpenAPI document names every route, and describes bodies as the checks do."""

import dataclasses
import re

import jsonschema
import pytest

from app.api.body.schemas import AnyBody, ChatBody, CompletionBody, read_fields
from app.api.body.structured_output import requested_outputs
from app.api.routes.openapi import document
from app.api.routes.operations import OPERATIONS, body_kinds
from app.contract.errors import InvalidValue, RequestError
from app.contract.grammar import StructuredOutputs
from app.contract.parameter import Parameter
from app.contract.sampling_params import BOUNDS, PARAMETERS, SamplingParams
from app.text.answer.tool_use import choose_tools
from app.text.calls.formats import FORMATS
from app.text.grammar.grammar_sources import MAX_SOURCE_BYTES, grammar_of
from tests.api.routes.test_tools import ANSWERS, TOOLS, USER, app_with
from tests.api.serving import client_of, make_app
from tests.fakes import FakeEngine

NAMED = {"type": "function", "function": {"name": "weather"}}
TOOL_FIELDS = {
    "tools": [
        None, [], TOOLS, [NAMED], [{"function": {"name": "f", "description": None, "strict": True}}],
        [{"function": {"name": "f", "parameters": None, "further": 1}}], [{"type": None, "function": {"name": "f"}}],
        {}, "weather", [3], [{}], [{"type": "function"}], [{"type": "web", "function": {"name": "f"}}],
        [{"function": {}}], [{"function": {"name": ""}}], [{"function": {"name": "a b"}}],
        [{"function": {"name": "f" * 128}}], [{"function": {"name": "f" * 129}}], [{"function": {"name": "a.b/c"}}],
        [{"function": {"name": 3}}], [{"function": {"name": "f", "strict": 1}}],
        [{"function": {"name": "f", "description": 3}}], [{"function": {"name": "f", "parameters": []}}],
        [{"function": {"name": f"f{number}"}} for number in range(128)],
        [{"function": {"name": f"f{number}"}} for number in range(129)],
    ],
    "tool_choice": [
        None, "none", "auto", "required", NAMED, {**NAMED, "further": 1},
        "weather", "", 3, {}, [], {"type": "function"}, {"type": "function", "function": {}},
        {"function": {"name": "weather"}}, {"type": "web", "function": {"name": "weather"}},
        {"type": "function", "function": {"name": 3}},
        *({"type": "allowed_tools", "allowed_tools": allowed} for allowed in (
            {"mode": "auto", "tools": [NAMED]}, {"mode": "required", "tools": [NAMED]}, {}, [], None,
            {"mode": "auto"}, {"mode": "auto", "tools": []}, {"mode": "none", "tools": [NAMED]},
            {"mode": "auto", "tools": [{"type": "function"}]}, {"mode": "auto", "tools": [NAMED, "weather"]},
        )), {"type": "allowed_tools"}, {"type": "custom", "custom": {"name": "weather"}},
    ],
}  # fmt: skip
LONG = "a" * (MAX_SOURCE_BYTES + 1)
ANSWER_FIELDS = {
    "response_format": [
        None, {"type": "text"}, {"type": "json_object"}, {"type": "json_object", "schema": {}},
        {"type": "text", "x": 1}, {"type": "json_object", "value": {}}, {"type": "json", "value": {}}, {"type": "json"},
        {"type": "regex", "value": "a"}, {"type": "regex", "value": {}}, {"type": "text", "value": "a"},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a", "description": None, "strict": True, "schema": "{}"}},
        {}, [], "text", {"type": "yaml"}, {"type": 5}, {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"schema": None}}, {"type": "json_schema", "json_schema": {"schema": 5}},
        {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, {"type": "json_object", "schema": 5},
    ],
    "structured_outputs": [
        None, {"json": {}}, {"json": "{}"}, {"json": True}, {"regex": "a"}, {"choice": ["a"]}, {"grammar": "start: A"},
        {"json_object": True, "json": None}, {"regex": ""}, {"regex": 5}, {"regex": LONG}, {"choice": []},
        {"choice": [""]}, {"choice": ["a" * 257]}, {"choice": ["a"] * 513}, {"choice": "a"}, {"json": 5},
        {"json_object": 1}, {"grammar": LONG}, [], "a",
    ],
    "guided_choice": [None, ["a"], [], [""], [5], ["a"] * 513],
    "guided_json": [None, {}, "{}", False, 5, []],
    **{name: [None, "a", "", 5, LONG] for name in ("guided_regex", "regex", "guided_grammar", "ebnf", "grammar")},
}  # fmt: skip
UNDESCRIBED = {"/", "/static/{name}", "/preview", "/ws", "/live", "/openapi.json"}


async def document_of(**settings):
    async with client_of(await make_app(FakeEngine(), **settings)) as client:
        answer = await client.get("/openapi.json", headers={"authorization": "Bearer right"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return answer.json()


async def test_every_route_with_its_methods_is_described():
    app = await make_app()
    served = {re.sub(r":\w+}", "}", route.path): route.methods for route in app.routes if hasattr(route, "methods")}
    paths = (await document_of())["paths"]
    assert paths.keys() == served.keys() - UNDESCRIBED
    for path, operations in paths.items():
        assert {name.upper() for name in operations} == served[path] - {"HEAD"}


async def test_operations_have_names_of_their_own():
    paths = (await document_of())["paths"]
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names)


async def test_routes_need_a_key_only_on_a_server_with_keys():
    plain, keyed = await document_of(), await document_of(api_key=("right",))
    assert not any("security" in operation for path in plain["paths"].values() for operation in path.values())
    assert "securitySchemes" not in plain["components"]
    for path, operations in keyed["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in ("/livez", "/readyz", "/health"))
    assert keyed["components"]["securitySchemes"].keys() == {"bearer", "header"}


def test_every_reference_leads_to_a_schema():
    found = document(OPERATIONS, has_keys=True)
    schemas = found["components"]["schemas"]
    names = set(re.findall(r"#/components/schemas/(\w+)", repr(found)))
    assert names == schemas.keys()


@pytest.mark.parametrize("kind", body_kinds(), ids=lambda kind: kind.__name__)
def test_a_body_has_exactly_the_fields_of_its_struct(kind: type[AnyBody]):
    schema = document(OPERATIONS, has_keys=False)["components"]["schemas"][kind.__name__]
    assert schema["properties"].keys() == set(kind.__struct_fields__)
    assert not schema.keys() & {"additionalProperties"}, "further fields are ignored"
    assert not set(schema["x-unsupported"]) & schema["properties"].keys()


def test_a_completion_may_have_no_tokens_and_an_echo():
    schemas = document(OPERATIONS, has_keys=False)["components"]["schemas"]
    fields = schemas["CompletionBody"]["properties"]
    assert [kind.get("minimum") for kind in fields["max_tokens"]["anyOf"] if kind["type"] == "integer"] == [0]
    assert "echo" in fields and "echo" in schemas["ChatBody"]["x-unsupported"]
    for name in ("ChatBody", "CompletionBody"):
        (kind,) = [one for one in schemas[name]["properties"]["prompt_logprobs"]["anyOf"] if one["type"] != "null"]
        assert (kind["minimum"], kind["maximum"]) == (0, 20)


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
def test_sampling_parameters_have_their_help(parameter: Parameter):
    schemas = document(OPERATIONS, has_keys=False)["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody"):
        assert schemas[name]["properties"][parameter.name]["description"] == parameter.help
    assert parameter.help.endswith(".")


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bounds_in_the_document_are_those_of_the_checks(name):
    body = "ChatBody" if name == "max_tokens" else "CompletionBody"  # a completion with `echo` may have 0
    schema = document(OPERATIONS, has_keys=False)["components"]["schemas"][body]["properties"][name]
    (kind,) = [one for one in schema["anyOf"] if one["type"] != "null"]
    bounds = BOUNDS[name]
    low = kind["minimum"]
    assert (low, kind["maximum"]) == (bounds.low, bounds.high)
    beams = {"use_beam_search": True} if name in ("beam_width", "length_penalty") else {}
    kinds = {field.name for field in dataclasses.fields(SamplingParams)}
    for value in (bounds.low - 1, bounds.high + 1):
        assert name in kinds
        with pytest.raises(InvalidValue) as caught:
            SamplingParams(**{name: value}, **beams)
        assert caught.value.param == name


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in TOOL_FIELDS.items() for value in values])
def test_tools_in_the_document_are_those_of_the_checks(name, value):
    schema = document(OPERATIONS, has_keys=False)["components"]["schemas"]["ChatBody"]["properties"][name]
    given = {"tools": TOOLS, "tool_choice": None} | {name: value}
    try:
        choose_tools(given["tools"], given["tool_choice"], None, FORMATS["hermes"])
    except RequestError as error:
        assert error.param.startswith(name)
        assert not jsonschema.Draft202012Validator(schema).is_valid(value)
    else:
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("body", ["ChatBody", "CompletionBody"])
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in ANSWER_FIELDS.items() for value in values], ids=str
)
def test_what_an_answer_must_be_is_in_the_document_as_in_the_checks(body, name, value):
    kind, needed = {"ChatBody": (ChatBody, {"messages": []}), "CompletionBody": (CompletionBody, {"prompt": "a"})}[body]
    schemas = document(OPERATIONS, has_keys=False)["components"]["schemas"]
    schema = {**schemas[body]["properties"][name], "components": {"schemas": schemas}}
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    try:
        requested = requested_outputs(read_fields({**needed, name: value}, kind, is_strict=False)[0])
        if requested is not None:
            grammar_of(requested.outputs)
    except RequestError as error:
        assert not is_valid and (error.param.startswith(name) or error.param in StructuredOutputs.__dataclass_fields__)
    else:
        assert is_valid


def test_the_format_of_an_answer_is_told_by_its_type():
    schemas = document(OPERATIONS, has_keys=False)["components"]["schemas"]
    (kinds, null) = schemas["ChatBody"]["properties"]["response_format"]["anyOf"]
    assert null == {"type": "null"} and kinds["discriminator"]["propertyName"] == "type"
    assert kinds["discriminator"]["mapping"].keys() == {"text", "json_object", "json", "regex", "json_schema"}
    for kind, ref in kinds["discriminator"]["mapping"].items():
        assert schemas[ref.rpartition("/")[2]]["properties"]["type"] == {"enum": [kind]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "tools": TOOLS, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": ["Hi", "Ho"], "logprobs": 2}),
    ],
)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_every_field_of_an_answer_is_described(path, body, answer):
    app, _ = await app_with(answer, reasoning_field="both")
    async with client_of(app) as client:
        response = await client.post(path, json=body | {"n": 2, "return_token_ids": True, "timings": True})
        found = (await client.get("/openapi.json")).json()
    assert response.status_code == 200, response.text
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    described = found["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), {**described, "components": found["components"]})
