"""Answers of several windows on the page, from the real application over a fake engine, also where nobody looks."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from app.contract.requests import Pause, Resume
from tests.api.serving import HANG_S, make_app, serving, until
from tests.e2e.browsing import Watch, ask, last_answer, new_page
from tests.fakes import FakeEngine, Script

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIECES = [f"word{number} " for number in range(1, 1501)]
STALL_S = 4.0

# A tab behind another one: no frames at all, timers a minute late at best (Chromium calls it intensive throttling).
# A window behind another one may get no frames either, and not know that it is hidden.
# Both hold for frames and timers that were asked for before.
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


async def kept(page: Page) -> dict[str, Any]:
    """The last message as the page keeps it."""
    message: dict[str, Any] = await page.evaluate("JSON.parse(sessionStorage['quire.conversation'] ?? '[]').at(-1)")
    return message


async def ended(page: Page) -> dict[str, Any]:
    """The last message, once it has ended; nothing needs to be painted for that."""
    async with asyncio.timeout(HANG_S):
        while True:
            if message := await kept(page):
                return message
            await asyncio.sleep(0.01)


async def test_an_answer_of_several_windows_is_whole(browser: Browser) -> None:
    engine = FakeEngine(Script(answer=PIECES))
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        watch = Watch(page)
        await page.goto(url)
        await ask(page, "Much?")
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        message = await kept(page)
        assert (message["text"], message["figures"]["tokens"]) == ("".join(PIECES), len(PIECES))
        await expect(last_answer(page).locator(".prose")).to_have_text("".join(PIECES).strip())
        await watch.check(page, url)
        await context.close()


async def test_an_answer_goes_on_in_a_tab_that_nobody_sees(browser: Browser) -> None:
    engine = FakeEngine(Script(answer=PIECES), held=True)
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        await page.add_init_script(HIDING)
        await page.goto(url)
        await ask(page, "Much?")
        await until(lambda: engine.requests)
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
        await page.evaluate("hide()")
        await step_slowly(engine)
        message = await ended(page)
        assert (message["state"], message["text"]) == ("done", "".join(PIECES))
        assert engine.aborted == []
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")  # nothing was painted
        await page.evaluate("show()")
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await expect(last_answer(page).locator(".prose")).to_have_text("".join(PIECES).strip())
        await context.close()


async def test_an_answer_goes_on_in_a_window_without_frames(browser: Browser) -> None:
    engine = FakeEngine(Script(answer=PIECES[:700]), held=True)
    async with serving(await make_app(engine, stall_timeout=STALL_S)) as url:
        context, page = await new_page(browser)
        await page.add_init_script(HIDING)
        await page.goto(url)
        await ask(page, "Much?")
        await until(lambda: engine.requests)
        await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
        await page.evaluate("cover()")
        engine.release()
        message = await ended(page)
        assert (message["state"], message["text"]) == ("done", "".join(PIECES[:700]))
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await context.close()


async def step_slowly(engine: FakeEngine) -> None:
    """Generate about as fast as a model does, so that no window is spent before a tenth of a second has passed."""
    async with asyncio.timeout(HANG_S):
        engine.step()
        while True:
            if not engine.port.num_open:
                return
            engine.step(5)
            await asyncio.sleep(0.005)


async def test_a_page_that_does_not_paint_pauses_the_answer_and_catches_up(browser: Browser) -> None:
    engine = FakeEngine(Script(answer=PIECES), held=True)
    async with serving(await make_app(engine)) as url:
        context, page = await new_page(browser)
        await page.goto(url)
        await ask(page, "Much?")
        await until(lambda: engine.requests)
        await page.evaluate("void setTimeout(() => { const end = Date.now() + 1000; while (Date.now() < end); })")
        engine.release()
        await until(lambda: any(isinstance(command, Pause) for command in engine.port.posted))
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        assert any(isinstance(command, Resume) for command in engine.port.posted)
        assert (await kept(page))["text"] == "".join(PIECES)
        await context.close()


async def test_a_server_that_drains_in_mid_answer_ends_it_whole(browser: Browser) -> None:
    engine = FakeEngine(Script(answer=PIECES), held=True)
    app = await make_app(engine)
    async with serving(app) as url:
        context, page = await new_page(browser)
        await page.goto(url)
        await ask(page, "Much?")
        await until(lambda: engine.requests)
        engine.step(300)
        await expect(last_answer(page).locator(".prose")).to_contain_text(re.compile("word200 "))
        drain = asyncio.create_task(app.state.context.drain.run(HANG_S))
        await expect(page.get_by_role("status")).to_contain_text("The server is shutting down.")
        engine.release()
        await expect(last_answer(page)).to_have_attribute("data-state", "done", timeout=HANG_S * 1000)
        assert (await kept(page))["text"] == "".join(PIECES)
        await drain
        await context.close()
