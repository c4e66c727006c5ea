"""`GET /v1/engine/events` on a real server: figures from the counters of /metrics, once in an interval."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
import jsonschema
import msgspec
import pytest

from app.api.routes.engine_events import EVENTS_PATH, MAX_STREAMS
from app.contract.engine_figures import EngineFigures
from tests.api.serving import HANG_S, client_of, make_app, serving, until
from tests.fakes import FakeEngine

SCHEMA = msgspec.json.schema(EngineFigures)


@asynccontextmanager
async def reading(url: str, interval: str = "0.2", **headers: str) -> AsyncIterator[AsyncIterator[dict]]:
    """The figures of one stream."""

    async def figures(response: httpx.Response) -> AsyncIterator[dict]:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    async with (
        httpx.AsyncClient(timeout=HANG_S, trust_env=False, verify=False) as client,
        client.stream("GET", f"{url}{EVENTS_PATH}?interval={interval}", headers=headers) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        yield figures(response)


async def test_figures_come_again_and_again_and_follow_the_engine():
    engine = FakeEngine()
    engine.start()
    async with serving(await make_app(engine)) as url, reading(url) as figures:
        first = await anext(figures)
        jsonschema.validate(first, SCHEMA)
        assert (first["model"], first["state"], first["brownout"]) == ("guide", "ready", 0)
        engine.port.script.brownout_level = 2
        engine.port.script.max_num_seqs = 0
        async with waiting_request(url):
            while (newest := await anext(figures))["waiting"] != 1:
                pass
        assert newest["brownout"] == 2


@asynccontextmanager
async def waiting_request(url: str) -> AsyncIterator[None]:
    """Have a request in the queue of a server, which never runs it."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with httpx.AsyncClient(timeout=HANG_S, trust_env=False, verify=False) as client:
        asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body))
        yield
        assert asking.cancel(), "it has been answered"
        with suppress(asyncio.CancelledError):
            await asking


@pytest.mark.parametrize("interval", ["0.1", "61", "x", "nan", "-1", "", "inf", "1e-9", "x" * 1000])
async def test_other_intervals_are_refused(interval: str):
    async with client_of(await make_app()) as client:
        answer = await client.get(EVENTS_PATH, params={"interval": interval})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "interval")
    assert (
        error["message"].startswith("interval must be a number of seconds from 0.2 to 60, not ")
        and len(error["message"]) < 200
    )


async def test_only_so_many_streams_are_open_and_an_end_makes_room():
    async with serving(await make_app()) as url:
        async with AsyncExitStack() as stack, httpx.AsyncClient(trust_env=False, verify=False) as client:
            streams = [await stack.enter_async_context(reading(url, "60")) for _ in range(MAX_STREAMS)]
            for figures in streams:
                await anext(figures)
            answer = await client.get(f"{url}{EVENTS_PATH}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        await until_open(url)


async def until_open(url: str) -> None:
    """Wait until the server takes a stream."""
    async with asyncio.timeout(HANG_S), httpx.AsyncClient(trust_env=False, verify=False) as client:
        while True:
            async with client.stream("GET", f"{url}{EVENTS_PATH}") as response:
                if response.status_code == 200:
                    return


async def test_a_head_request_and_a_missing_key_open_no_stream():
    app = await make_app(api_key=["k1"])
    async with client_of(app) as client:
        assert (await client.get(EVENTS_PATH)).status_code == 401
        assert (await client.head(EVENTS_PATH, headers={"x-api-key": "k1"})).status_code == 200
    async with serving(app) as url, reading(url, **{"x-api-key": "k1"}) as figures:
        assert (await anext(figures))["model"] == "guide"


async def test_a_drain_ends_the_streams_and_refuses_new_ones():
    app = await make_app(FakeEngine())
    async with serving(app) as url, reading(url, "60") as figures:
        await anext(figures)
        drain = asyncio.create_task(app.state.context.drain.run(HANG_S))
        with pytest.raises(StopAsyncIteration):
            await anext(figures)
        await drain
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            assert (await client.get(f"{url}{EVENTS_PATH}")).status_code == 503


async def test_a_client_that_leaves_ends_its_stream():
    app = await make_app()
    async with serving(app) as url:
        async with reading(url) as figures:
            await anext(figures)
            assert len(app.state.context.drain._listeners) == 1
        await until(lambda: not app.state.context.drain._listeners)
