"""The browser's own EventSource resumes an answer by itself, with the program of docs/reference/http.md."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser

from tests.api.cutting_proxy import cutting
from tests.api.serving import make_app, serving, until
from tests.api.test_resuming_examples import ANSWER, example
from tests.e2e.browsing import new_page, until_true
from tests.fakes import FakeEngine, Script

LAST_ID = re.compile(r"^last-event-id: (\S+)\r?$", re.MULTILINE | re.IGNORECASE)
pytestmark = pytest.mark.asyncio(loop_scope="session")

# The documented program, and beside it a reader that never closes: it gets 204 when it comes back behind the end.
PROGRAM = """
async () => {
  window.shown = [];
  const show = (chunk) => shown.push(chunk.choices[0].delta.content ?? "");
  %s
  window.documented = events;
  window.endless = new EventSource(`/v1/streams/${id}`);
  endless.onmessage = () => endless.count = (endless.count ?? 0) + 1;
}
"""


async def test_the_stock_event_source_gets_every_token_once_and_stops_at_the_end(browser: Browser):
    app = await make_app(FakeEngine(Script(answer=ANSWER)))
    async with serving(app) as url, cutting(url, 1, 2) as (broken, proxy):
        proxy.may_cut.clear()  # a browser may drop what has come just before a connection breaks
        context, page = await new_page(browser)
        await page.goto(f"{broken}/livez")
        await page.evaluate(PROGRAM % example("js"))

        await until_true(page, "shown.length >= 2 && endless.count >= 2")
        proxy.may_cut.set()
        await until_true(page, "documented.readyState === 2 && endless.readyState === 2")
        text = await page.evaluate("shown.join('')")
        await until(lambda: not app.state.context.streams.num_open)
        await context.close()
    assert text == "".join(ANSWER)
    assert proxy.num_cut == 2
    positions = LAST_ID.findall("".join(proxy.heads))
    assert "end" in positions and len({*positions} - {"end"}) == 1
