"""Titles that the model writes, and where it writes none."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, until_complete, until_last, until_stored
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_conversations import choose, entries, open_list

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def has_no_title_asked(page: Page, server: ScriptedServer) -> bool:
    """Whether the page, with the part that asks, has started no further stream when it has read all that was sent."""
    await until_complete(page)
    await server.ping()
    return server.streams.empty()


async def test_after_the_first_answer_the_model_writes_the_title(page: Page, server: ScriptedServer) -> None:
    server.model = "smollm2"
    await (await begin(page, server, "How is bread made?")).answer("With yeast.")
    title = await server.next_stream()
    assert title.request["priority"] == 100
    assert title.request["max_tokens"] == 16
    assert [message["role"] for message in title.request["messages"]] == ["user", "assistant", "user"]
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text(["How is bread made?"])
    await expect(page.locator(".answer")).to_have_count(1)
    await title.answer('"Baking Bread"')
    await expect(entries(page).locator("bdi")).to_have_text(["Baking Bread"])
    await until_last(page, "conversations", title="Baking Bread", titleFrom="model")
    await ask(page, "And cake?")
    await (await server.next_stream()).answer("With eggs.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    assert await has_no_title_asked(page, server)
    await page.reload()
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text(["Baking Bread"])


async def test_the_next_question_does_not_wait_for_a_title(page: Page, server: ScriptedServer) -> None:
    server.model = "smollm2"
    await (await begin(page, server, "How is bread made?")).answer("With yeast.")
    title = await server.next_stream()
    await title.delta("Half a")
    await ask(page, "And cake?")
    stream = await server.next_stream()
    await title.cancelled.wait()
    assert stream.request["messages"][-1]["content"] == "And cake?"
    await title.done("cancelled")
    await stream.answer("With eggs.")
    again = await server.next_stream()
    await again.error("overloaded", 503, "The queue is full.")
    await expect(last_answer(page).locator(".prose")).to_have_text("With eggs.")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text(["How is bread made?"])


async def test_a_conversation_that_the_user_named_keeps_its_name(page: Page, server: ScriptedServer) -> None:
    server.model = "smollm2"
    stream = await begin(page, server, "How is bread made?")
    await stream.delta("With")
    await open_list(page)
    await choose(page, "How is bread made?", "Rename")
    await page.get_by_label("Title", exact=True).fill("Mine")
    await page.keyboard.press("Enter")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    assert await has_no_title_asked(page, server)


@pytest.mark.parametrize("why", ["guide", "off"])
async def test_no_title_is_asked_of_guide_or_against_the_setting(page: Page, server: ScriptedServer, why: str) -> None:
    if why == "off":
        server.model = "smollm2"
        await page.goto(server.url)
        await page.get_by_role("button", name="Settings", exact=True).click()
        wish = page.get_by_label("Let the model write the titles")
        await expect(wish).to_have_accessible_description(re.compile("Where it writes no short one"))
        await wish.uncheck()
        await page.keyboard.press("Escape")
    await (await begin(page, server, "How is bread made?")).answer("With yeast.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    assert await has_no_title_asked(page, server)


async def test_the_tab_has_the_title_and_a_mark_while_nobody_has_seen_the_answer(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    await expect(page).to_have_title("Quire")
    await page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.isAway ?? false })")
    for number, is_away in enumerate((False, True)):
        await ask(page, "How is bread made?")
        stream = await server.next_stream()
        await page.evaluate("away => { window.isAway = away; }", is_away)
        await stream.delta("With")
        await expect(last_answer(page).locator(".prose")).to_have_text("With")
        await expect(page).to_have_title("How is bread made? - Quire")
        await stream.done()
        await until_last(page, "messages", state="done")
        await until_stored(page, "messages", 2 * number + 2)
        await expect(page).to_have_title(f"{'● ' * is_away}How is bread made? - Quire")
    await page.evaluate("isAway = false; document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))")
    await expect(page).to_have_title("How is bread made? - Quire")
    await page.get_by_role("button", name="New chat").click()
    await expect(page).to_have_title("Quire")
    await page.go_back()
    await expect(page).to_have_title("How is bread made? - Quire")
    await page.reload()
    await expect(page).to_have_title("How is bread made? - Quire")
