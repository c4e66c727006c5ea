"""The page needs no network but its server: all other connections are cut, and it asks for none."""

import pytest
from playwright.async_api import Browser, Route, WebSocketRoute, expect

from tests.e2e.browsing import PageWatch, ask, begin, last_answer, new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = """**Bold**, $x^2$, ![a picture](https://elsewhere.example/picture.png) and [a link](https://elsewhere.example).

```python
print("colours")
```
"""


async def test_the_page_works_and_asks_nobody_else(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser)
    watch = PageWatch(page)
    elsewhere: list[str] = []

    async def cut(route: Route | WebSocketRoute) -> None:
        url = route.url if isinstance(route, WebSocketRoute) else route.request.url
        elsewhere.append(url)
        await (route.close() if isinstance(route, WebSocketRoute) else route.abort("internetdisconnected"))

    own = server.url.removeprefix("http")
    await context.route(lambda url: not url.startswith("http" + own), cut)
    await context.route_web_socket(lambda url: not url.startswith("ws" + own), cut)
    await (await begin(page, server)).answer(ANSWER)
    await expect(last_answer(page).locator("math")).to_be_visible()
    await expect(last_answer(page).locator("[class^='hljs-']").first).to_be_visible()
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await page.get_by_label("Search conversations").fill("bold")
    await expect(page.locator(".conversation-title")).to_be_visible()
    for button in (page.get_by_role("button", name="Settings", exact=True), page.locator(".model")):
        await button.click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.reload()
    await expect(last_answer(page).locator("math")).to_be_visible()
    await ask(page, "Still there?")
    await (await server.next_stream()).answer("Yes.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Yes.")
    assert elsewhere == []
    await watch.check(page, server.url)
    await context.close()
