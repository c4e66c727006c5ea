"""A browser that blocks localStorage and sessionStorage, as private windows may."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, last_answer
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = """
for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
}
"""


@pytest.mark.own_page
async def test_the_page_answers_and_changes_its_theme_without_storage(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script(BLOCK)
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_label("Theme of the page").select_option("dark")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.keyboard.press("Escape")
    await ask(page, "Why?")
    stream = await server.next_stream()
    await stream.answer("So.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
