"""Pages that end without a word: the tab crashes, or a phone discards it. At most the last second is lost."""

import asyncio
from contextlib import suppress

import pytest
from playwright.async_api import Error, Page, expect

from tests.e2e.browsing import TIMEOUT_MS, begin, last_answer, until_last, until_true
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The first listener of the window: the page's own ones get no event.
NO_PAGEHIDE = 'addEventListener("pagehide", (event) => event.stopImmediatePropagation());'


async def crash(page: Page) -> None:
    """End the process of a page."""
    crashed = asyncio.Event()
    page.on("crash", lambda _page: crashed.set())
    session = await page.context.new_cdp_session(page)
    sending = asyncio.create_task(session.send("Page.crash"))
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        await crashed.wait()
    sending.cancel()
    with suppress(Error, asyncio.CancelledError):
        await sending
    await page.close()


@pytest.mark.own_page
async def test_a_crash_in_mid_answer_loses_nothing_that_was_stored_by_then(page: Page, server: ScriptedServer) -> None:
    """What is shown is stored within a second, also without a further token."""
    writer = await page.context.new_page()
    stream = await begin(writer, server)
    for piece in ("Once", " upon"):
        await stream.delta(piece)
    await expect(last_answer(writer).locator(".prose")).to_have_text("Once upon")
    await writer.get_by_label("Your question").fill("And then?")
    await until_last(writer, "messages", text="Once upon", state="streaming")
    await until_last(writer, "conversations", draft="And then?")
    url = writer.url
    await crash(writer)
    await page.goto(url)
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await expect(page.get_by_role("alert")).to_contain_text("The rest was not received.")
    await expect(page.get_by_label("Your question")).to_have_value("And then?")


async def test_a_question_that_waited_in_a_tab_that_crashed_is_in_the_field(page: Page, server: ScriptedServer) -> None:
    writer = await page.context.new_page()
    stream = await begin(writer, server)
    await stream.delta("Once")
    await expect(last_answer(writer).locator(".prose")).to_have_text("Once")
    await until_last(writer, "messages", text="Once", state="streaming")
    url = writer.url
    await page.goto(url)
    await expect(last_answer(page).locator(".standing")).to_have_text("being written in another tab")
    await writer.get_by_label("Your question").fill("And then?")
    await writer.get_by_label("Your question").press("Enter")
    await until_last(writer, "conversations", queued={"text": "And then?", "files": []})
    await stream.delta(" upon")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await expect(page.get_by_label("Your question")).to_have_value("")
    await writer.close()
    await expect(page.get_by_role("alert")).to_contain_text("The rest was not received.")
    await expect(page.get_by_label("Your question")).to_have_value("And then?")


@pytest.mark.own_page
@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_new_chat_keeps_its_text_and_settings_when_its_tab_is_discarded(
    page: Page, server: ScriptedServer, is_hidden: bool
) -> None:
    """The text is kept within a second, and at once when the tab is hidden."""
    await page.add_init_script(NO_PAGEHIDE)
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.keyboard.press("Escape")
    await page.get_by_label("Your question").fill("Half a question")
    if is_hidden:
        await page.evaluate('document.dispatchEvent(new Event("visibilitychange", { bubbles: true }))')
        assert "Half a question" in await page.evaluate('sessionStorage["quire.new"]')
    else:
        await until_true(page, 'sessionStorage["quire.new"]?.includes("Half a question")')
    await page.reload()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await expect(page.get_by_label("Your question")).to_have_value("Half a question")
    await page.get_by_label("Your question").press("Enter")
    messages = (await server.next_stream()).request["messages"]
    assert [message["content"] for message in messages] == ["Be brief.", "Half a question"]
