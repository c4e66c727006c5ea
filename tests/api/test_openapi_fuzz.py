"""Requests made from the OpenAPI document: no response breaks the document, none is a failure of the server.

Half of the bodies break their schemas. `make fuzz` runs the same for longer.
"""

import asyncio
import os
from collections.abc import Callable
from functools import cache

import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.api.routes.openapi import document
from app.api.routes.operations import OPERATIONS
from tests.api.serving import HANG_S, make_app, serving
from tests.fakes import FakeEngine

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
EXAMPLES = int(os.environ.get("QUIRE_FUZZ_EXAMPLES", "4"))  # `make fuzz` has a thousand


@cache
def described() -> schemathesis.schemas.BaseSchema:
    """The document, read once: that takes as long as the requests of an operation."""
    return schemathesis.openapi.from_dict(orjson.loads(orjson.dumps(document(OPERATIONS, has_keys=False))))


def fuzzed(
    operation: schemathesis.schemas.APIOperation, mode: schemathesis.GenerationMode, url: str
) -> Callable[[], None]:
    """A test of one operation with generated requests to the server at an address."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="QUIRE_FUZZ_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        response = case.call(url, timeout=HANG_S)
        case.validate_response(response, checks=CHECKS)

    return run


VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [
    (operation.method, operation.path.replace(":path", ""), mode)
    for operation in OPERATIONS
    for mode in ((VALID, INVALID) if operation.bodies else (VALID,))
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 3}),
    ],
)
async def test_streams_are_answered_as_documented(path, body):
    async with serving(await make_app(FakeEngine())) as url:
        schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{url}/openapi.json")
        offered = schema.raw_schema["paths"][path]["post"]["responses"]["200"]["content"].keys() - {"application/json"}
        assert offered <= {"text/event-stream", "application/x-ndjson"} and "text/event-stream" in offered
        for accept in sorted(offered):
            case = schema[path]["POST"].Case(
                body={**body, "stream": True}, media_type="application/json", headers={"Accept": accept}
            )
            response = await asyncio.to_thread(case.call, timeout=HANG_S)
            assert response.status_code == 200 and accept in response.headers["content-type"][0]
            case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize(("method", "path", "mode"), CASES, ids=str)
async def test_generated_requests_are_answered_as_documented(method, path, mode):
    async with serving(await make_app(FakeEngine())) as url:
        await asyncio.to_thread(fuzzed(described()[path][method], mode, url))
