"""Where WebSockets are blocked, the page streams over HTTP, from the application over a fake engine."""

import pytest
from playwright.async_api import Browser, expect

from tests.api.serving import make_app, serving, until
from tests.e2e.browsing import PageWatch, ask, last_answer, new_page
from tests.fakes import FakeEngine, Script

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCKED = """window.WebSocket = class {
  static OPEN = 1;
  readyState = 3;
  constructor() { setTimeout(() => this.onclose({ code: 1006 })); }
  close() {}
};"""


# A proxy that accepts the upgrade and passes no frame on. The time of the page for its welcome is over at once.
SILENT = """window.WebSocket = class {
  static OPEN = 1;
  readyState = 1;
  constructor() { setTimeout(() => this.onopen()); }
  send() {}
  close() {}
};
const { setTimeout: wait } = window;
window.setTimeout = (run, ms) => wait(run, ms === 10_000 ? 50 : ms);"""


@pytest.mark.parametrize("websocket", [BLOCKED, SILENT], ids=["refused", "silent"])
async def test_answers_stream_over_http_and_can_be_stopped(browser: Browser, websocket: str) -> None:
    engine = FakeEngine(Script(answer=[f"word{number} " for number in range(200)]), held=True)
    async with serving(await make_app(engine, api_key=["right"])) as url:
        context, page = await new_page(browser)
        watch = PageWatch(page)
        await page.add_init_script(websocket)
        await page.goto(url)
        field = page.get_by_label("This server requires an API key.")
        await field.fill("right")
        await field.press("Enter")
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        engine.step(20)
        prose = last_answer(page).locator(".prose")
        await expect(prose).to_contain_text("word19")
        await expect(last_answer(page).locator(".tokens b")).to_have_text("20")
        await page.keyboard.press("Escape")
        await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
        await until(lambda: engine.aborted)
        await ask(page, "Again?")
        await until(lambda: len(engine.requests) == 2)
        engine.release()
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await expect(prose).to_contain_text("word199")
        await watch.check(page, url)
        await context.close()
