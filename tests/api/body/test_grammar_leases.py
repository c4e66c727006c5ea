"""Leases of grammars end with what they are for: a session, or an answer that never begins."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import pytest_asyncio
from starlette.applications import Starlette

from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.http.accounts import Sender
from app.contract.errors import InvalidValue, Overloaded
from tests.api.chat_client import open_chat
from tests.api.serving import client_of, make_app, parse, raw, with_grammars
from tests.fakes import FakeEngine

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def app() -> Starlette:
    """The application over a fake engine, with the vocabulary of `guide`."""
    return with_grammars(await make_app())


def leases(app: Starlette) -> list[dict[str, int]]:
    """The leases of the grammars that are kept, by account."""
    return [dict(entry.leases) for entry in app.state.context.grammars.entries.by_grammar.values()]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No cycle of objects is collected: nothing ends because somebody has forgotten it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}, {"prompt": ["a", "b"]}], ids=str)
@pytest.mark.parametrize("is_full", [False, True], ids=["answered", "the queue is full"])
async def test_a_lease_ends_with_its_request(app: Starlette, fields: dict[str, Any], is_full: bool):
    context, seen = app.state.context, list[list[dict[str, int]]]()
    submit_all = context.engine.submit_all

    def submitted(submissions: Any) -> None:
        seen.append(leases(app))
        if is_full:
            raise Overloaded("The queue is full.")
        submit_all(submissions)

    context.engine.submit_all = submitted
    route, prompt = ("/v1/completions", {}) if "prompt" in fields else (CHAT, {"messages": MESSAGES})
    async with client_of(app) as client:
        response = await client.post(route, json={**prompt, "regex": "a+", **fields})
        assert response.status_code == (503 if is_full else 200)
    assert [sum(lease.values()) for (lease,) in seen] == [1] and leases(app) == [{}]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_full", [False, True], ids=["answered", "the queue is full"])
async def test_a_lease_ends_with_its_stream_on_a_socket(is_full: bool):
    async with open_chat(engine := FakeEngine()) as chat:
        assert chat.app is not None
        with_grammars(chat.app)
        if is_full:
            engine.submit_all = Mock(side_effect=Overloaded("The queue is full."))  # type: ignore[method-assign]
        await chat.start(regex="a+", max_tokens=4)
        await chat.receive_until("error" if is_full else "done")
        assert leases(chat.app) == [{}]


@pytest.mark.usefixtures("no_collector")
async def test_a_lease_ends_where_no_response_can_be_made(app: Starlette, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.api.body.new_answer.make_response", None)
    async with client_of(app) as client:
        assert (await client.post(CHAT, json={"messages": MESSAGES, "regex": "a+"})).status_code == 500
    assert leases(app) == [{}]


async def test_a_rejected_grammar_is_not_leased(app: Starlette):
    with pytest.raises(InvalidValue):
        await parse(raw({"messages": MESSAGES, "regex": "(?=a)"}), app.state.context, parse_chat)
    assert leases(app) == [{}]


async def test_a_grammar_is_leased_by_the_account_of_its_request(app: Starlette):
    body = raw({"prompt": "hi", "regex": "a+"})
    parsed = await parse(body, app.state.context, parse_completion, Sender(account="one"))
    (entry,) = app.state.context.grammars.entries.by_grammar.values()
    assert parsed.lease is not None and entry.leases == {"one": 1}
