"""Right-to-left text has its direction, and code in it runs from left to right."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.browsing import begin, last_answer, new_page
from tests.e2e.scripted import ScriptedServer
from tests.e2e.shots import Shots

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "كيف أشغّل الخادم؟"
ANSWER = """`quire serve` هو الأمر الذي يشغّل الخادم، ثم افتح الصفحة في المتصفح.

- الخطوة الأولى: `make setup`
- الخطوة الثانية

> اقتباس قصير

| الاسم | الحجم |
|---|---|
| كتلة | 16 |

```sh
quire serve --port 8000
```

A last paragraph in English.
"""


async def direction(element: Locator) -> str:
    """The text direction of an element."""
    found: str = await element.evaluate("element => getComputedStyle(element).direction")
    return found


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_each_block_has_the_direction_of_its_text_and_code_runs_left_to_right(
    page: Page, server: ScriptedServer, is_streaming: bool
) -> None:
    stream = await begin(page, server, QUESTION)
    await stream.answer(ANSWER, size=5 if is_streaming else len(ANSWER))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    prose = last_answer(page).locator(".prose")
    assert await direction(page.locator(".question p")) == "rtl"
    for right_to_left in ("p >> nth=0", "ul", "blockquote", "table"):
        assert await direction(prose.locator(right_to_left)) == "rtl", right_to_left
    assert await direction(prose.get_by_text("A last paragraph")) == "ltr"
    for code in await prose.locator("code").all():
        assert await direction(code) == "ltr"
    assert await direction(prose.locator("pre")) == "ltr"


async def test_the_field_has_the_direction_of_its_text(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await field.fill(QUESTION)
    assert await direction(field) == "rtl"
    await field.fill("How?")
    assert await direction(field) == "ltr"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 320)])
async def test_a_right_to_left_answer_fits_the_window(
    browser: Browser, server: ScriptedServer, shots: Shots, scheme: str, width: int
) -> None:
    context, page = await new_page(
        browser, viewport={"width": width, "height": 800 if width > 320 else 568}, color_scheme=scheme
    )
    stream = await begin(page, server, QUESTION)
    await stream.answer(ANSWER, size=200)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_label("Your question").fill(QUESTION)
    widest = "Math.max(document.documentElement.scrollWidth, document.querySelector('.log').scrollWidth)"
    assert await page.evaluate(widest) <= width
    await shots.take(page, f"rtl-{width}-{scheme}")
    await context.close()
