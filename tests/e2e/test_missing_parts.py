"""Parts of the page that are loaded later than the page: the server may be away by then, or of another version."""

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from tests.api.serving import HANG_S
from tests.e2e.browsing import begin, last_answer, until_complete
from tests.e2e.scripted import ScriptedServer
from tests.e2e.tour import DROP

pytestmark = [pytest.mark.own_page, pytest.mark.asyncio(loop_scope="session")]

MISSING = "A part of this page could not be loaded."


async def converse(page: Page, server: ScriptedServer) -> None:
    """Open the page, and get one answer."""
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")


async def test_everything_works_without_the_server_once_the_page_was_idle(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await until_complete(page)
    await converse(page, server)
    await server.kill()
    await expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    await page.get_by_role("button", name="Edit answer").click()
    await expect(page.get_by_label("Edit the answer")).to_have_value("First.")
    await page.get_by_role("button", name="Cancel").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("First.")
    for name in ("Settings", "Model"):
        await (page.locator(".model") if name == "Model" else page.get_by_role("button", name=name)).click()
        await expect(page.get_by_role("dialog", name=name)).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.evaluate(DROP)
    await expect(page.locator(".composer .file-name")).to_have_text("notes.txt")
    await page.get_by_role("button", name="Conversations", exact=True).click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export all").click()
    assert (await download.value).suggested_filename == "One.json"
    await expect(page.get_by_text(MISSING)).to_have_count(0)
    await server.listen()


async def test_a_message_stays_when_its_editor_cannot_be_loaded_and_the_next_try_loads_it(
    page: Page, server: ScriptedServer
) -> None:
    for name in ("preload", "editor"):
        await page.route(f"**/{name}.js*", lambda route: route.abort())
    await converse(page, server)
    await page.get_by_role("button", name="Edit answer").click()
    await expect(page.locator(".toast")).to_contain_text(MISSING)
    await expect(last_answer(page).locator(".prose")).to_have_text("First.")
    await page.get_by_label("Your question").focus()
    await page.keyboard.press("ArrowUp")
    await expect(page.locator(".question p")).to_have_text("One?")
    await page.unroute("**/editor.js*")
    # Another address: some browsers never ask again for one that has failed.
    async with page.expect_request("**/editor.js?*"):
        await page.get_by_role("button", name="Edit answer").click()
    await expect(page.get_by_label("Edit the answer")).to_have_value("First.")


async def test_a_window_that_cannot_be_loaded_says_so_and_opens_later(page: Page, server: ScriptedServer) -> None:
    for name in ("preload.js*", "panel.js*", "sidebar.css"):
        await page.route(f"**/{name}", lambda route: route.abort())
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    for name in ("Settings", "Conversations"):
        await page.get_by_role("button", name=name, exact=True).click()
        await expect(page.locator(".toast")).to_contain_text(MISSING)
        await page.get_by_role("button", name="Dismiss").click()
        await expect(page.locator(".toast")).to_have_count(0)
    await page.unroute_all()
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await expect(page.locator(".sidebar")).to_be_visible()
    await page.get_by_role("button", name="Settings", exact=True).click()
    await expect(page.get_by_role("dialog", name="Settings")).to_be_visible()


async def test_colours_that_could_not_be_loaded_come_with_the_next_block(page: Page, server: ScriptedServer) -> None:
    await page.route("**/highlight-*", lambda route: route.abort())
    stream = await begin(page, server)
    async with page.expect_event("requestfailed"):
        await stream.delta("```python\nfor\n```\n\nAnd\n")
    await page.unroute_all()
    async with page.expect_request("**/highlight-*.mjs?*"):
        await stream.answer("\n```python\nif\n```\n", size=40)
    await expect(last_answer(page).locator(".hljs-keyword")).to_have_text(["if"])


async def test_why_an_answer_failed_is_told_before_its_part_is_loaded(page: Page, server: ScriptedServer) -> None:
    for name in ("preload", "failure"):
        await page.route(f"**/{name}.js*", lambda route: route.abort())
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await server.kill()
    await expect(last_answer(page).get_by_role("alert")).to_contain_text("lost before the answer was complete")
    await expect(page.locator(".toast")).to_contain_text(MISSING)
    await page.unroute_all()
    await server.listen()
    await last_answer(page).get_by_role("button", name="Continue", exact=True).click()
    await (await server.next_stream()).answer(" a time.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon a time.")


async def test_the_page_answers_before_markdown_is_loaded(page: Page, server: ScriptedServer) -> None:
    asked, loaded = asyncio.Event(), asyncio.Event()

    async def wait(route: Route) -> None:
        asked.set()
        await loaded.wait()
        await route.continue_()

    await page.route("**/markdown.js", wait)
    stream = await begin(page, server)
    await asyncio.wait_for(asked.wait(), HANG_S)
    await stream.delta("It is **bold")
    await expect(last_answer(page).locator(".prose")).to_have_text("It is **bold")
    loaded.set()
    await expect(last_answer(page).locator("strong")).to_have_text("bold")
    await stream.answer("**.")
    await expect(last_answer(page).locator(".prose")).to_have_text("It is bold.")


async def test_answers_are_shown_with_their_marks_when_markdown_cannot_be_loaded(
    page: Page, server: ScriptedServer
) -> None:
    await page.route("**/prose.js*", lambda route: route.abort())
    await (await begin(page, server)).answer("It is **bold**.\n\n<b>So.</b>")
    await expect(page.locator(".toast")).to_contain_text(MISSING)
    await expect(last_answer(page).locator(".prose")).to_have_text("It is **bold**.\n\n<b>So.</b>")
    await page.unroute_all()
    await page.reload()
    await expect(last_answer(page).locator("strong")).to_have_text("bold")
