"""Whatever refuses a request, wherever it is refused, the server's metrics have counted it once."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.contract.errors import QueueTimeout
from tests.api.chat_client import open_chat
from tests.api.serving import HANG_S, Connection, client_of, make_app, serving, until
from tests.fakes import FakeEngine, Script

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
ROUTE = "/v1/chat/completions"


def counted(app, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a family that are not 0, by the values of their own labels."""
    families = text_string_to_metric_families(app.state.metrics.render().decode())
    (family,) = [family for family in families if family.name == name]
    labels = ("route", "code") if name == "quire_http_requests" else ("reason",)
    return {tuple(one.labels[label] for label in labels): one.value for one in family.samples if one.value}


async def test_answers_and_refusals_are_counted_by_route_and_code():
    app = await make_app(api_key=("k",))
    async with client_of(app, authorization="Bearer k") as client:
        for path, body in ((ROUTE, CHAT), (ROUTE, CHAT | {"temperature": 9}), (ROUTE, CHAT | {"model": "x"})):
            await client.post(path, json=body)
        await client.post(ROUTE, json=CHAT, headers={"authorization": "Bearer wrong"})
        await client.get(ROUTE)
        await client.get("/nothing/here")
        await client.get("/v1/models/guide")
        await client.get("/static/nothing.js")
    assert counted(app, "quire_http_requests") == {
        (ROUTE, "200"): 1, (ROUTE, "400"): 1, (ROUTE, "404"): 1, (ROUTE, "401"): 1, (ROUTE, "405"): 1,
        ("other", "404"): 1, ("/v1/models/{model}", "200"): 1, ("/static/{name}", "404"): 1,
    }  # fmt: skip
    assert counted(app, "quire_refusals") == {
        ("invalid_value",): 1, ("model_not_found",): 1, ("invalid_api_key",): 1, ("method_not_allowed",): 1,
        ("not_found",): 2,
    }  # fmt: skip


async def test_a_request_that_the_guard_rejects_is_counted():
    app = await make_app()
    async with serving(app) as url:
        connection = await Connection.open(url)
        connection.writer.write(b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n")
        assert (await connection.head())[0] == 400
        connection.writer.close()
    assert counted(app, "quire_http_requests") == {("/v1/models", "400"): 1}
    assert counted(app, "quire_refusals") == {("http_invalid",): 1}


async def test_an_error_behind_the_beginning_of_a_stream_is_counted():
    error = QueueTimeout("late").info()
    app = await make_app(FakeEngine(Script(fail_after=2, error=error)))
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=HANG_S) as client:
        assert (await client.post(ROUTE, json=CHAT | {"stream": True})).status_code == 200
        await until(lambda: counted(app, "quire_http_requests"))
    assert counted(app, "quire_http_requests") == {(ROUTE, "200"): 1}
    assert counted(app, "quire_refusals") == {("queue_timeout",): 1}


async def test_streams_on_a_websocket_are_counted_beside_their_connection():
    async with open_chat(FakeEngine()) as chat:
        await chat.start("a", max_tokens=4)
        await chat.receive_until("done")
        await chat.start("b", temperature=9)
        await chat.receive_until("error")
        assert chat.app is not None
        assert counted(chat.app, "quire_http_requests") == {("/ws", "200"): 1, ("/ws", "400"): 1}
        assert counted(chat.app, "quire_refusals") == {("invalid_value",): 1}


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_probes_of_a_draining_server_are_no_refusals(path: str):
    engine = FakeEngine()
    app = await make_app(engine)
    async with client_of(app) as client:
        await engine.drain(0)
        assert (await client.get(path)).status_code == 503
        assert (await client.post(ROUTE, json=CHAT)).status_code == 503
    assert counted(app, "quire_refusals") == {("draining",): 1}
