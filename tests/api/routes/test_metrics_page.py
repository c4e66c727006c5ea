"""The route of metrics."""

import asyncio

import pytest
from starlette.requests import Request

from app.api.app import create_app
from app.api.http.request_turns import MAX_BEGUN
from app.api.routes.metrics_page import METRICS_SHARE, MetricsPage
from app.config.settings import make_config
from app.observe.metrics import Metrics
from app.streaming.async_engine import AsyncEngine
from tests.api.serving import client_of, load_text, make_app
from tests.fakes import FakePort

REQUEST = Request({"type": "http"})


async def test_metrics_count_the_tokens_of_the_engine():
    metrics = Metrics("guide")
    port = FakePort()
    engine = AsyncEngine(port, make_config({}), observe=metrics.observe)
    engine.start()
    app = create_app(engine, make_config({}), load_text(make_config({})), metrics)
    port.run_thread()
    try:
        async with client_of(app) as client:
            await client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 3})
            answer = await client.get("/metrics")
    finally:
        await engine.close()
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert 'vllm:prompt_tokens_total{engine="0",model_name="guide"} 2.0' in lines
    assert 'vllm:generation_tokens_total{engine="0",model_name="guide"} 3.0' in lines


async def test_servers_in_one_process_have_their_own_metrics():
    for _ in range(2):
        async with client_of(await make_app()) as client:
            assert (await client.get("/metrics")).status_code == 200


class CountedPage:
    """A metrics page that counts its renderings; each takes `work_s` of the loop."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.num_rendered = 0
        self.now = 0.0
        self._work_s = work_s
        self.page = MetricsPage(self._render, clock=lambda: self.now)

    def _render(self) -> bytes:
        self.now += self._work_s
        self.num_rendered += 1
        return b"%d" % self.num_rendered

    async def get(self) -> bytes:
        """The body of a response."""
        return (await self.page.show(REQUEST)).body


async def test_concurrent_requests_share_one_rendering_of_the_metrics():
    page = CountedPage()
    assert await asyncio.gather(*(page.get() for _ in range(100))) == [b"1"] * 100
    assert await page.get() == b"2"


async def test_a_cancelled_request_for_metrics_does_not_affect_others():
    page = CountedPage()
    first, second = asyncio.create_task(page.get()), asyncio.create_task(page.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"1"
    assert first.cancelled()


async def test_an_error_while_rendering_metrics_is_raised_to_every_request():
    page = MetricsPage(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await page.show(REQUEST)


async def test_rendering_metrics_takes_a_bounded_share_of_the_loop(monkeypatch):
    page, loop, delays = CountedPage(work_s=0.004), asyncio.get_running_loop(), []

    def call_later(delay, callback):
        delays.append(delay)
        page.now += delay
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    for _ in range(10):
        await page.get()
    assert delays[0] == 0, "the first does not wait"
    assert page.now == pytest.approx((10 - 1) * 0.004 / METRICS_SHARE + 0.004)
    page.now += 1
    await page.get()
    assert delays[-1] == 0


async def test_concurrent_requests_for_metrics_render_them_once(monkeypatch):
    num_rendered, render = 0, Metrics.render

    def counted(self) -> bytes:
        nonlocal num_rendered
        num_rendered += 1
        return render(self)

    monkeypatch.setattr(Metrics, "render", counted)
    async with client_of(await make_app()) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(MAX_BEGUN)))
    assert {answer.status_code for answer in answers} == {200}
    assert num_rendered == 1
