"""At a zoom of 200 %, everything that a conversation needs is reached without scrolling sideways."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.browsing import PageWatch, ask, begin, last_answer, new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# 1280 x 800 px at 200 %
ZOOMED = {"width": 640, "height": 400}
WIDE = f"```sh\nquire serve {'--option value ' * 20}\n```\n\n$$ {' + '.join(f'x_{i}' for i in range(60))} $$\n"


async def reach(page: Page, control: Locator) -> None:
    """Scroll to a control; it must then be within the window, and the page no wider than it."""
    await control.scroll_into_view_if_needed()
    box = await control.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= ZOOMED["width"], box
    widest = "Math.max(document.documentElement.scrollWidth, document.querySelector('.log').scrollWidth)"
    assert await page.evaluate(widest) <= ZOOMED["width"]


async def test_a_conversation_at_a_zoom_of_200_percent(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser, viewport=ZOOMED, device_scale_factor=2)
    watch = PageWatch(page)
    stream = await begin(page, server, "What is Quire?")
    await stream.delta(WIDE)
    await expect(last_answer(page).locator("math")).to_be_visible()
    stop = page.get_by_role("button", name="Stop", exact=True)
    await reach(page, stop)
    await stop.click()
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    for name in ("Continue answer", "Answer again", "Edit answer", "Copy answer", "Wrap long lines"):
        await reach(page, last_answer(page).get_by_role("button", name=name))
    await page.get_by_role("button", name="Edit question").click()
    editor = page.get_by_label("Edit your question")
    await reach(page, editor)
    await editor.fill("What is a quire?")
    await page.keyboard.press("Enter")
    await (await server.next_stream()).answer("A few sheets.")
    await expect(last_answer(page).locator(".prose")).to_have_text("A few sheets.")
    await page.get_by_role("button", name="Settings", exact=True).click()
    await reach(page, page.get_by_label("Top-p"))
    await page.get_by_label("Top-p").fill("0.5")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await reach(page, page.get_by_label("Search conversations"))
    await page.get_by_label("Search conversations").fill("sheets")
    title = page.locator(".conversation-title")
    await reach(page, title)
    await title.click()
    await expect(page.locator(".sidebar")).to_have_count(0)  # it covers the conversation, and closes by itself
    await reach(page, page.get_by_label("Your question"))
    await ask(page, "And now?")
    stream = await server.next_stream()
    assert stream.request["top_p"] == 0.5
    await stream.answer("Still here.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Still here.")
    await watch.check(page, server.url)
    await context.close()
