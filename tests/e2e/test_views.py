"""Each view of the page in light and dark, on a desktop and a phone: no view is wider than the window."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.browsing import PageWatch, ask, last_answer, new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

RICH = """Quire keeps the **key-value cache** in *blocks*, much as an operating system keeps memory in pages.

## How it works

1. A request asks for as many blocks as its prompt needs.
2. Each further token takes the next free slot.
   - blocks need not be neighbours
   - a finished request gives its blocks back

| what | size |
|:-----|-----:|
| block | 16 tokens |
| model | 8 MB |

```python
client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
for chunk in client.chat.completions.create(model="guide", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="")
```

> The first sheet carries the thread.

See [the documentation](https://example.org/quire) or run `quire serve`.
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_every_view_fits_the_window(
    browser: Browser, server: ScriptedServer, shots: Path, scheme: str, size: str
) -> None:
    viewport = {"width": 1280, "height": 800} if size == "desktop" else {"width": 390, "height": 844}
    context, page = await new_page(
        browser,
        viewport=viewport,
        color_scheme=scheme,
        has_touch=size == "phone",
        is_mobile=size == "phone",
        device_scale_factor=1 if size == "desktop" else 2,
    )
    watch = PageWatch(page)

    async def shoot(view: str) -> None:
        widest = "Math.max(document.documentElement.scrollWidth, document.querySelector('.log').scrollWidth)"
        assert await page.evaluate(widest) <= viewport["width"], f"{view} is wider than the window"
        await page.screenshot(path=shots / f"{view}-{size}-{scheme}.png")

    server.health = {"status": "loading", "progress": 0.42}
    await page.goto(server.url)
    await expect(page.locator("progress")).to_be_visible()
    await shoot("loading")
    server.health = {"status": "ready", "progress": 1.0}
    await expect(page.get_by_role("button", name="What is Quire?")).to_be_visible()
    await shoot("welcome")
    await ask(page, "How does the paged KV cache work, and how do I call the server from Python?")
    stream = await server.next_stream()
    await stream.delta(RICH[:300], tokens=70)
    await expect(last_answer(page).locator(".tokens b")).to_have_text("70")
    await shoot("streaming")
    await stream.delta(RICH[300:], tokens=130)
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await shoot("answer")
    await ask(page, "x" * 300)
    await (await server.next_stream()).error("overloaded", 503, "The queue is full; try again in a moment.")
    await expect(page.get_by_role("alert")).to_be_visible()
    await shoot("failed")
    server.key = "secret"
    await page.evaluate("sessionStorage.clear()")
    await page.reload()
    await expect(page.get_by_label("This server requires an API key.")).to_be_visible()
    await shoot("locked")
    await watch.check(page, server.url)
    await context.close()
