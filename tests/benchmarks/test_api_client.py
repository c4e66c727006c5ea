"""Responses that are not streamed: status, body and time limit."""

import asyncio

import pytest

from app.loadgen.target import find_target
from benchmarks.api_client import ApiClient
from tests.api.serving import until
from tests.loadgen.fakes import HANG_S, chunked, http, rejection, serving, text


async def test_a_response_has_status_and_body():
    async with serving(http(b'{"text": "a"}'), chunked(b"pa", b"ge")) as server:
        client = ApiClient(find_target(server.url), HANG_S)
        posted, page = await client.post("/v1/completions", {"n": 1}), await client.get("/metrics")
    assert (posted.status, posted.content) == (200, b'{"text": "a"}')
    assert (page.status, page.content) == (200, b"page")
    assert server.bodies == [{"n": 1}] and "GET /metrics " in server.heads[1]


async def test_an_error_response_has_its_status():
    async with serving(rejection()) as server:
        assert (await ApiClient(find_target(server.url), HANG_S).post("/v1/completions", {})).status == 503


async def test_a_response_that_exceeds_the_time_limit_raises_a_timeout(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    clock = loop.time
    async with serving(chunked(text(), is_complete=False)) as server:
        server.hold()
        posting = asyncio.create_task(ApiClient(find_target(server.url), HANG_S / 2).post("/v1/completions", {}))
        await until(lambda: server.num_open == 1)
        monkeypatch.setattr(loop, "time", lambda: clock() + HANG_S / 2)
        with pytest.raises(TimeoutError):
            await posting
        await until(lambda: server.lost == [0])
