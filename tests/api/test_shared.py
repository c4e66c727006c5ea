"""What is the same for all who ask at about the same time is made once, and leaves the loop to others in between."""

import asyncio

import pytest

from app.api.shared import SHARE, Shared
from tests.api.serving import client_of, make_app


class Page:
    """Counts how often it is made; each time takes `work_s` of the loop."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.num_made = 0
        self.now = 0.0
        self._work_s = work_s
        self.shared = Shared(self._make, clock=lambda: self.now)

    def _make(self) -> int:
        self.now += self._work_s
        self.num_made += 1
        return self.num_made


async def test_those_who_ask_at_once_share_one_and_who_comes_later_gets_a_new_one():
    page = Page()
    assert await asyncio.gather(*(page.shared.get() for _ in range(100))) == [1] * 100
    assert await page.shared.get() == 2


async def test_who_gives_up_takes_nothing_from_the_others():
    page = Page()
    first, second = asyncio.create_task(page.shared.get()), asyncio.create_task(page.shared.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    assert first.cancelled()


async def test_what_goes_wrong_is_told_to_all():
    page = Shared(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await page.get()


async def test_it_takes_its_share_of_the_loop_and_no_more(monkeypatch):
    page, loop, delays = Page(work_s=0.004), asyncio.get_running_loop(), []

    def call_later(delay, callback):
        delays.append(delay)
        page.now += delay
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    for _ in range(10):
        await page.shared.get()
    assert delays[0] == 0, "the first does not wait"
    assert page.now == pytest.approx((10 - 1) * 0.004 / SHARE + 0.004)
    page.now += 1
    await page.shared.get()
    assert delays[-1] == 0


async def test_metrics_that_many_ask_for_at_once_are_rendered_once():
    app = await make_app()
    num_rendered, render = 0, app.state.context.metrics_page._make

    def counted() -> bytes:
        nonlocal num_rendered
        num_rendered += 1
        return render()

    app.state.context.metrics_page = Shared(counted)
    async with client_of(app) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert num_rendered == 1
