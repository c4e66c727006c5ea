"""What is typed while no field has the focus is written into the composer, and a phone's keyboard stays away."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.browsing import PageWatch, begin, last_answer, new_page
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_focus import open_list

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# A computer with a keyboard alone: no query for a pointer is true but the one for none.
NO_POINTER = """
const { matchMedia: match } = window;
window.matchMedia = (query) => (/pointer:/.test(query) ? { matches: /pointer: none/.test(query) } : match(query));
"""

# Presses a key as soon as the composer is there, before anything else is done.
FIRST_KEY = """
new MutationObserver((_, observer) => {
  if (!document.getElementById("question")) return;
  observer.disconnect();
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true }));
}).observe(document, { childList: true, subtree: true });
"""


@pytest.mark.own_page
async def test_a_page_that_is_seen_hears_its_keys(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script(FIRST_KEY)
    await page.goto(server.url)
    await expect(page.get_by_label("Your question")).to_be_focused()


async def test_what_is_typed_beside_every_field_is_written_into_the_composer(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await expect(field).not_to_be_focused()
    await page.keyboard.type("What is @ß?")
    await expect(field).to_have_value("What is @ß?")
    await page.get_by_role("button", name="Settings", exact=True).focus()
    await page.keyboard.press("Space")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.type("And?")
    await expect(field).to_have_value("What is @ß?")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.type("And?")
    await expect(field).to_have_value("What is @ß?And?")


@pytest.mark.own_page
async def test_what_is_pasted_beside_every_field_is_written_into_the_composer(
    page: Page, server: ScriptedServer
) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(server.url)
    await page.evaluate("navigator.clipboard.writeText('From elsewhere.')")
    await page.locator(".log").focus()
    await page.keyboard.press("Control+v")
    await expect(page.get_by_label("Your question")).to_have_value("From elsewhere.")


async def test_letters_in_other_fields_stay_there(page: Page, server: ScriptedServer) -> None:
    await open_list(page, server)
    await page.keyboard.type("one")
    await expect(page.get_by_label("Search conversations")).to_have_value("one")
    await expect(page.get_by_label("Your question")).to_have_value("")


async def test_typing_closes_the_list_where_it_covers_the_composer(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser, viewport={"width": 640, "height": 800})
    await open_list(page, server)
    await page.get_by_role("button", name="Actions for One?").focus()
    await page.keyboard.type("And?")
    await expect(page.locator(".sidebar")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("And?")
    await context.close()


async def test_a_computer_without_a_pointer_has_the_focus_in_the_composer(
    browser: Browser, server: ScriptedServer
) -> None:
    context, page = await new_page(browser)
    watch = PageWatch(page)
    await page.add_init_script(NO_POINTER)
    await (await begin(page, server)).answer("It is a server.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="New chat").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Your question")).to_be_focused()
    await watch.check(page, server.url)
    await context.close()


async def test_on_a_phone_the_composer_gets_the_focus_from_a_finger_alone(
    browser: Browser, server: ScriptedServer
) -> None:
    context, page = await new_page(browser, **PHONE)
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await page.get_by_role("button", name="What is Quire?").tap()
    await (await server.next_stream()).answer("It is a server.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(field).not_to_be_focused()
    await page.get_by_role("button", name="New chat").tap()
    await expect(page.locator(".welcome")).to_be_visible()
    await expect(field).not_to_be_focused()
    await field.tap()
    await expect(field).to_be_focused()
    await context.close()


async def test_on_a_phone_enter_makes_a_new_line_and_the_button_sends(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser, **PHONE)
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await expect(field).to_have_attribute("enterkeyhint", "enter")
    await field.tap()
    await page.keyboard.type("first line")
    await page.keyboard.press("Enter")
    await page.keyboard.type("second line")
    await expect(field).to_have_value("first line\nsecond line")
    await page.get_by_role("button", name="Send").tap()
    stream = await server.next_stream()
    assert stream.request["messages"][0]["content"] == "first line\nsecond line"
    await stream.delta("First")
    await field.tap()
    await page.keyboard.type("And?")
    await page.get_by_role("button", name="Send").tap()
    await expect(page.locator(".queued-text")).to_have_text("Next: And?")
    await expect(page.get_by_role("button", name="Send")).to_have_count(0)
    await stream.answer(" answer.")
    await (second := await server.next_stream()).answer("Second answer.")
    assert second.request["messages"][-1]["content"] == "And?"
    await page.keyboard.press("Control+/")
    rows = page.get_by_role("dialog").get_by_role("row")
    await expect(rows.first).to_have_text(re.compile(r"^Enter\s*New line$"))
    await context.close()


async def test_with_a_keyboard_enter_sends(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await expect(field).to_have_attribute("enterkeyhint", "send")
    await field.fill("One?")
    await field.press("Enter")
    assert (await server.next_stream()).request["messages"][0]["content"] == "One?"
