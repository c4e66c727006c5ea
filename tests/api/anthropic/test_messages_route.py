"""The routes of the Messages API."""

from unittest.mock import Mock

import pytest

from app.contract.errors import Overloaded
from tests.api.anthropic.messages import BODY, COUNT, PATH, TOOLS, USER
from tests.api.body.test_grammar_leases import leases
from tests.api.serving import client_of, connected, make_app, serving, until, with_grammars
from tests.fakes import FakeEngine, Script


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_a_response_has_the_id_of_its_request_under_both_names(fields):
    async with client_of(await make_app()) as client:
        answer = await client.post(PATH, json=BODY | fields, headers={"x-request-id": "mine"})
        assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"
        answer = await client.post(COUNT, json={"messages": [USER]}, headers={"x-request-id": "mine"})
        assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_ignored_fields_are_named_in_a_header(fields):
    async with client_of(await make_app()) as client:
        answer = await client.post(PATH, json=BODY | fields | {"loudness": 1})
        assert answer.headers["x-quire-ignored"] == "loudness"
        answer = await client.post(COUNT, json={"messages": [USER], "loudness": 1})
        assert answer.headers["x-quire-ignored"] == "loudness"


@pytest.mark.parametrize(
    "headers", [{"idempotency-key": "a"}, {"x-quire-resume": "1"}, {"accept": "application/x-ndjson"}]
)
async def test_answers_are_not_kept_and_have_one_framing(headers):
    app = await make_app(FakeEngine(Script(["a"])))
    async with client_of(app) as client:
        answers = [await client.post(PATH, json=BODY | {"stream": True}, headers=headers) for _ in range(2)]
    assert answers[0].content != answers[1].content, "each has an id of its own"
    assert all("x-quire-stream-id" not in answer.headers for answer in answers)
    assert all(answer.headers["content-type"].startswith("text/event-stream") for answer in answers)
    assert len(app.state.context.engine.requests) == 2


async def test_a_client_that_goes_away_aborts_its_request():
    engine = FakeEngine(held=True)
    async with serving(await make_app(engine)) as url:
        async with connected(url) as connection:
            await connection.post(PATH, BODY | {"stream": True})
            await until(lambda: engine.requests)
        await until(lambda: engine.aborted)
    assert engine.aborted == [engine.requests[0].id]


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_lease_of_a_grammar_ends_with_its_request(is_full):
    engine = FakeEngine()
    app = with_grammars(await make_app(engine))
    if is_full:
        engine.submit_all = Mock(side_effect=Overloaded("Full."))
    async with client_of(app) as client:
        answer = await client.post(PATH, json=BODY | {"tools": TOOLS, "tool_choice": {"type": "any"}})
    assert answer.status_code == (503 if is_full else 200)
    assert leases(app) == [{}]
