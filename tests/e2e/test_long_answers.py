"""Answers longer than the credit window, from the application over a fake engine, in visible and hidden tabs."""

import asyncio
import re
from dataclasses import replace

import pytest
from playwright.async_api import Browser, Route, expect

from app.contract.engine_status import ModelInfo
from app.contract.requests import Pause, Resume
from tests.api.serving import HANG_S, make_app, serving, until
from tests.e2e.browsing import PageWatch, ask, last_answer, new_page, stored_answer
from tests.fakes import FakeEngine, Script

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIECES = [f"word{number} " for number in range(1, 1501)]
STALL_S = 40.0

# A hidden tab gets no animation frames, and its timers fire once a minute (Chromium's intensive throttling). A covered
# window may get no frames either, and does not know that it is hidden. Both hold for frames and timers that were
# requested before.
HIDING = """
(() => {
  const [frame, timeout] = [window.requestAnimationFrame.bind(window), window.setTimeout.bind(window)];
  const waiting = [];
  let [isHidden, isCovered] = [false, false];
  Object.defineProperty(document, "hidden", { get: () => isHidden });
  const later = (run) => (...time) => (isCovered ? waiting.push(run) : run(...time));
  window.requestAnimationFrame = (run) => frame(later(run));
  const muchLater = (run) => (...rest) => (isHidden ? timeout(run, 60000, ...rest) : run(...rest));
  window.setTimeout = (run, ms, ...rest) => timeout(muchLater(run), isHidden ? 60000 : ms, ...rest);
  window.cover = () => { isCovered = true; };
  window.hide = () => { isHidden = isCovered = true; };
  window.show = () => {
    isHidden = isCovered = false;
    waiting.splice(0).forEach((run) => frame(run));
  };
})();
"""
# The page does nothing until the response arrives.
BLOCK = """void setTimeout(() => {
  const request = new XMLHttpRequest();
  request.open("GET", "/hold", false);
  request.send();
})"""


class LongEngine(FakeEngine):
    """An engine with a context of which the page lets an answer have a quarter, enough for all pieces."""

    def __init__(self, pieces: list[str], *, held: bool = True) -> None:
        super().__init__(Script(answer=pieces), held=held)

    def model_info(self) -> ModelInfo:
        return replace(super().model_info(), max_model_len=4 * len(PIECES))


async def test_an_answer_of_several_windows_is_complete(browser: Browser) -> None:
    engine = LongEngine(PIECES, held=False)
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        watch = PageWatch(page)
        await page.goto(url)
        await ask(page, "Long?")
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        message = await stored_answer(page)
        assert (message["text"], message["figures"]["tokens"]) == ("".join(PIECES), len(PIECES))
        await expect(last_answer(page).locator(".prose")).to_have_text("".join(PIECES).strip())
        await watch.check(page, url)
        await context.close()


async def test_an_answer_continues_in_a_hidden_tab(browser: Browser) -> None:
    engine = LongEngine(PIECES)
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        await page.add_init_script(HIDING)
        await page.goto(url)
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
        await page.evaluate("hide()")
        await step_slowly(engine)
        message = await stored_answer(page)
        assert (message["state"], message["text"]) == ("done", "".join(PIECES))
        assert engine.aborted == []
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")  # nothing was painted
        await page.evaluate("show()")
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await expect(last_answer(page).locator(".prose")).to_have_text("".join(PIECES).strip())
        await context.close()


async def test_an_answer_continues_in_a_window_without_frames(browser: Browser) -> None:
    engine = LongEngine(PIECES[:700])
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        await page.add_init_script(HIDING)
        await page.goto(url)
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
        await page.evaluate("cover()")
        engine.release()
        message = await stored_answer(page)
        assert (message["state"], message["text"]) == ("done", "".join(PIECES[:700]))
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await context.close()


async def step_slowly(engine: FakeEngine) -> None:
    """Generate about as fast as a model, so that a credit window lasts for at least a tenth of a second."""
    async with asyncio.timeout(HANG_S):
        engine.step()
        while True:
            if not engine.port.num_open:
                return
            engine.step(5)
            await asyncio.sleep(0.005)


async def test_a_blocked_page_pauses_the_answer_and_catches_up(browser: Browser) -> None:
    engine = LongEngine(PIECES)
    async with serving(await make_app(engine)) as url:
        context, page = await new_page(browser)
        await page.goto(url)
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        begun, over = asyncio.Event(), asyncio.Event()

        async def hold(route: Route) -> None:
            begun.set()
            await over.wait()
            await route.fulfill()

        await page.route("**/hold", hold)
        await page.evaluate(BLOCK)
        await begun.wait()
        engine.release()
        await until(lambda: any(isinstance(command, Pause) for command in engine.port.posted))
        over.set()
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        assert any(isinstance(command, Resume) for command in engine.port.posted)
        assert (await stored_answer(page))["text"] == "".join(PIECES)
        await context.close()


async def test_a_draining_server_completes_a_long_answer(browser: Browser) -> None:
    engine = LongEngine(PIECES)
    app = await make_app(engine)
    async with serving(app) as url:
        context, page = await new_page(browser)
        await page.goto(url)
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        engine.step(300)
        await expect(last_answer(page).locator(".prose")).to_contain_text(re.compile("word200 "))
        drain = asyncio.create_task(app.state.context.drain.run(HANG_S))
        await expect(page.get_by_role("status")).to_contain_text("The server is shutting down.")
        engine.release()
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        assert (await stored_answer(page))["text"] == "".join(PIECES)
        await drain
        await context.close()
