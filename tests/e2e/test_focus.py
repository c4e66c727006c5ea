"""The focus stays where the user goes on, when what had it is removed."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def open_list(page: Page, server: ScriptedServer) -> None:
    """Make one conversation, and put the focus into the search of the list."""
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_label("Search conversations")).to_be_focused()


async def choose(page: Page, action: str) -> None:
    """Choose an action in the menu of the conversation, by keyboard."""
    await page.get_by_role("button", name="Actions for One?").focus()
    await page.keyboard.press("Enter")
    await page.locator(".menu").get_by_role("button", name=action).focus()
    await page.keyboard.press("Enter")


@pytest.mark.parametrize("key", ["Enter", "Escape"])
async def test_after_a_renaming_it_is_on_the_title(page: Page, server: ScriptedServer, key: str) -> None:
    await open_list(page, server)
    await choose(page, "Rename")
    await expect(page.get_by_label("Title", exact=True)).to_be_focused()
    await page.keyboard.press(key)
    await expect(page.locator(".conversation-title")).to_be_focused()


@pytest.mark.parametrize("key", ["Enter", "Escape"])
async def test_a_renaming_opens_no_conversation_and_stops_no_answer(
    page: Page, server: ScriptedServer, key: str
) -> None:
    await open_list(page, server)
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Two?")
    stream = await server.next_stream()
    await stream.delta("Half")
    await choose(page, "Rename")
    await page.get_by_label("Title", exact=True).fill("First")
    await page.keyboard.press(key)
    await expect(page.locator(".conversation-title bdi").last).to_have_text("First" if key == "Enter" else "One?")
    await stream.answer(" and whole")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half and whole")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(page.locator(".question p")).to_have_text("Two?")


async def test_after_a_deletion_it_is_in_the_list_and_after_its_undoing_in_the_field(
    page: Page, server: ScriptedServer
) -> None:
    await open_list(page, server)
    for button in ("Undo", "Dismiss"):
        await choose(page, "Delete")
        await expect(page.locator(".conversation")).to_have_count(0)
        await expect(page.get_by_label("Search conversations")).to_be_focused()
        await page.get_by_role("button", name=button).focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".toast")).to_have_count(0)
        await expect(page.get_by_label("Your question")).to_be_focused()


async def test_after_a_pinning_it_is_on_the_menu_of_the_conversation(page: Page, server: ScriptedServer) -> None:
    await open_list(page, server)
    menu = page.get_by_role("button", name="Actions for One?")
    for action, day in (("Pin", "Pinned"), ("Unpin", "Today")):
        await menu.click()
        await page.locator(".menu").get_by_role("button", name=action, exact=True).click()
        await expect(page.locator(".day")).to_have_text([day])
        await expect(menu).to_be_focused()


async def test_after_a_selection_it_is_in_the_list(page: Page, server: ScriptedServer) -> None:
    await open_list(page, server)
    await page.get_by_role("button", name="Select", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Cancel").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("checkbox")).to_have_count(0)
    await expect(page.get_by_label("Search conversations")).to_be_focused()


async def test_when_the_list_is_hidden_it_is_in_the_field(page: Page, server: ScriptedServer) -> None:
    await open_list(page, server)
    await page.keyboard.press("Control+b")
    await expect(page.locator(".sidebar")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_be_focused()


async def test_when_the_answer_ends_it_goes_from_its_button_to_the_field(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("An answer")
    await page.get_by_role("button", name="Stop").focus()
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(page.get_by_label("Your question")).to_be_focused()


async def test_escape_in_the_search_empties_it_and_does_not_stop_the_answer(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("An answer")
    await page.keyboard.press("Control+k")
    search = page.get_by_label("Search conversations")
    await search.fill("answer")
    await search.press("Escape")
    await expect(search).to_have_value("")
    await expect(search).to_be_focused()
    await stream.delta(" goes on")
    await expect(last_answer(page).locator(".prose")).to_have_text("An answer goes on")
    await expect(last_answer(page)).to_have_attribute("data-state", "streaming")
