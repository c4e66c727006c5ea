"""Health routes."""

from dataclasses import replace

import pytest

from app.contract.engine_status import EngineHealth, EngineState
from app.runtime.clock import monotonic
from tests.api.serving import client_of, make_app
from tests.fakes import FakeEngine


class StalledEngine(FakeEngine):
    """An engine whose last progress was `stalled_s` seconds ago, at any time."""

    def __init__(self, is_busy: bool, stalled_s: float) -> None:
        super().__init__()
        self._is_busy = is_busy
        self._stalled_s = stalled_s

    def health(self) -> EngineHealth:
        return replace(super().health(), is_busy=self._is_busy, last_progress_time=monotonic() - self._stalled_s)


@pytest.mark.parametrize(
    ("state", "status", "livez", "readyz"),
    [
        (EngineState.READY, "ready", 200, 200),
        (EngineState.LOADING, "loading", 200, 503),
        (EngineState.FAILED, "failed", 503, 503),
    ],
)
async def test_health_follows_the_engine(state, status, livez, readyz):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        engine.port.state = state
        for path, expected in (("/livez", livez), ("/readyz", readyz), ("/health", readyz)):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["status"]) == (expected, status)
            assert 0 <= answer.json()["progress"] <= 1
            assert ("retry-after" in answer.headers) == (expected == 503)


async def test_a_draining_server_is_live_but_not_ready():
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        await engine.drain(0)
        assert (await client.get("/livez")).status_code == 200
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")


@pytest.mark.parametrize(
    ("is_busy", "stalled_s", "timeout_s", "readyz"),
    [
        (True, 6.0, 10.0, 503),
        (True, 2.0, 10.0, 200),
        (False, 6.0, 10.0, 200),
        (True, 6.0, 0.0, 200),
    ],
    ids=["stalled", "at work", "idle", "no watchdog"],
)
async def test_a_stalled_engine_is_live_but_not_ready(is_busy, stalled_s, timeout_s, readyz):
    engine = StalledEngine(is_busy, stalled_s)
    async with client_of(await make_app(engine, watchdog_timeout=timeout_s)) as client:
        for path in ("/readyz", "/health"):
            answer = await client.get(path)
            assert answer.status_code == readyz
            assert answer.json()["status"] == ("ready" if readyz == 200 else "failed")
            assert ("no progress for 6." in answer.json().get("message", "")) == (readyz == 503)
        answer = await client.get("/livez")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready", "progress": 1.0})


async def test_a_draining_engine_without_progress_is_reported_as_draining():
    engine = StalledEngine(is_busy=True, stalled_s=1000.0)
    async with client_of(await make_app(engine)) as client:
        await engine.drain(0)
        assert (await client.get("/readyz")).json()["status"] == "draining"


async def test_the_health_of_a_failed_engine_has_its_message():
    engine = FakeEngine()
    engine.port.state = EngineState.FAILED
    async with client_of(await make_app(engine)) as client:
        assert (await client.get("/health")).json()["message"] == "the fake has crashed"


@pytest.mark.parametrize(
    ("headers", "has_message"),
    [({}, False), ({"x-api-key": "wrong"}, False), ({"x-api-key": "k"}, True), ({"authorization": "Bearer k"}, True)],
)
async def test_with_keys_only_authorized_clients_get_the_failure_message(headers, has_message):
    engine = FakeEngine()
    async with client_of(await make_app(engine, api_key=("k",))) as client:
        engine.port.state = EngineState.FAILED
        for path in ("/livez", "/readyz", "/health"):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["status"]) == (503, "failed")
            assert ("message" in answer.json()) is has_message


async def test_page_and_health_are_served_while_the_model_loads():
    engine = FakeEngine()
    engine.port.state = EngineState.LOADING
    async with client_of(await make_app(engine)) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/livez")).json() == {"status": "loading", "progress": 0.5}
        assert (await client.get("/v1/models")).json()["error"]["code"] == "model_loading"
