"""Keys that an input method takes, as Chinese, Japanese and Korean are typed: the page does nothing with them."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import begin, last_answer
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_focus import choose, open_list

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Chromium and Firefox say that a composition goes on. In Safari the Enter that ends it comes behind its end, with the
# code of a key that an input method has taken.
COMPOSING = ["{ isComposing: true }", "{ keyCode: 229 }"]
PRESS = """([key, more]) => {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
  document.activeElement.dispatchEvent(event);
  return event.defaultPrevented;
}"""
Press = Callable[..., Awaitable[None]]


@pytest.fixture(params=COMPOSING)
def press(page: Page, request: pytest.FixtureRequest) -> Press:
    """Presses a key that an input method takes; the browser still does with it what it does."""

    async def press(key: str, **more: bool) -> None:
        taken = await page.evaluate(f"({request.param})")
        assert not await page.evaluate(PRESS, [key, taken | more])

    return press


async def test_enter_does_not_send_a_question_that_is_being_written(
    page: Page, server: ScriptedServer, press: Press
) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await field.fill("にほん")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await field.focus()
    await press("Enter")
    await expect(field).to_have_value("にほん")
    await field.press("Enter")
    stream = await server.next_stream()
    assert stream.request["messages"] == [{"role": "user", "content": "にほん"}], "a later Enter sends it"


async def test_escape_does_not_stop_the_answer(page: Page, server: ScriptedServer, press: Press) -> None:
    stream = await begin(page, server)
    await page.get_by_label("Your question").focus()
    await press("Escape")
    await stream.delta("It is ")
    await stream.delta("a server.")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")


async def test_no_key_ends_the_editing_of_a_question(page: Page, server: ScriptedServer, press: Press) -> None:
    await (await begin(page, server)).answer("It is a server.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.locator(".question").hover()
    await page.get_by_role("button", name="Edit question").click()
    field = page.get_by_label("Edit your question")
    await field.fill("にほん")
    for key in ("Enter", "Escape"):
        await press(key)
        await press(key, ctrlKey=True)
    await expect(field).to_have_value("にほん")


async def test_no_key_ends_the_naming_of_a_conversation_or_a_search(
    page: Page, server: ScriptedServer, press: Press
) -> None:
    await open_list(page, server)
    await choose(page, "Rename")
    title = page.get_by_label("Title", exact=True)
    await title.fill("にほん")
    for key in ("Enter", "Escape"):
        await press(key)
    await expect(title).to_have_value("にほん")
    await title.press("Enter")
    search = page.get_by_label("Search conversations")
    await search.fill("にほ")
    await press("Escape")
    await expect(search).to_have_value("にほ")


async def test_no_key_is_a_shortcut(page: Page, server: ScriptedServer, press: Press) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await field.focus()
    for key in ("k", "b", "/"):
        await press(key, ctrlKey=True)
    await expect(field).to_be_focused()
    await expect(page.get_by_role("dialog")).to_have_count(0)
