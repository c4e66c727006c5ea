"""An answer that another tab was writing, when that tab ends without a word."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, stored_answer, until_last
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def answer_elsewhere(page: Page, server: ScriptedServer, text: str) -> tuple[Page, Stream]:
    """Let another tab write an answer to `One?`, and `page` show it so far; return that tab and the answer's stream."""
    writer = await page.context.new_page()
    stream = await begin(writer, server, "One?")
    await stream.delta(text)
    await expect(last_answer(writer).locator(".prose")).to_have_text(text)
    await until_last(writer, "messages", state="streaming")
    await page.goto(writer.url)
    await expect(last_answer(page).locator(".standing")).to_have_text("being written in another tab")
    return writer, stream


async def ask_meanwhile(page: Page, server: ScriptedServer) -> tuple[Page, Stream]:
    """Let another tab write half an answer to `One?`, and ask `Two?` in `page`, where it waits."""
    writer, stream = await answer_elsewhere(page, server, "Half an")
    await ask(page, "Two?")
    await expect(page.locator(".queued")).to_contain_text("Two?")
    return writer, stream


async def answer_both(server: ScriptedServer, stream: Stream) -> None:
    """End the answer to `One?`, and answer `Two?`."""
    await stream.delta(" answer")
    await stream.done()
    stream = await server.next_stream()
    assert [message["content"] for message in stream.request["messages"]] == ["One?", "Half an answer", "Two?"]
    await stream.answer("Second.")


async def test_the_loss_of_an_answer_is_told_in_the_tab_that_shows_it(page: Page, server: ScriptedServer) -> None:
    writer, stream = await answer_elsewhere(page, server, "Half an")
    await stream.delta(" answer")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an answer")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await writer.close()
    await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
    await expect(page.get_by_role("alert")).to_contain_text("The rest was not received.")
    assert (await stored_answer(page))["state"] == "interrupted"
    await expect(page.get_by_role("button", name="Continue")).to_be_visible()


async def test_a_question_waits_for_the_answer_that_another_tab_writes(page: Page, server: ScriptedServer) -> None:
    writer, stream = await ask_meanwhile(page, server)
    await answer_both(server, stream)
    for tab in (page, writer):
        await expect(tab.locator(".question p")).to_have_text(["One?", "Two?"])
        await expect(tab.locator(".prose")).to_have_text(["Half an answer", "Second."])
    await writer.close()


async def test_a_question_that_waits_for_another_tab_waits_on_after_a_reload(
    page: Page, server: ScriptedServer
) -> None:
    writer, stream = await ask_meanwhile(page, server)
    await page.reload()
    # In this tab, or in the other one, if that has asked whose it is while this one was being loaded.
    await expect(page.locator(".queued")).to_contain_text("Two?")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".queued")).to_have_count(0)
    await answer_both(server, stream)
    await expect(writer.locator(".prose")).to_have_text(["Half an answer", "Second."])
    await writer.close()


async def test_a_question_that_waits_is_shown_in_every_tab_and_is_taken_over_by_one(
    page: Page, server: ScriptedServer
) -> None:
    writer, stream = await ask_meanwhile(page, server)
    editing = writer.get_by_role("button", name="Edit the waiting question")
    await expect(writer.locator(".queued")).to_contain_text("Next: Two?")
    await expect(editing).to_have_count(0)
    url = page.url
    await page.goto("about:blank")
    await expect(editing).to_be_visible()
    await page.goto(url)
    await expect(page.locator(".queued")).to_contain_text("Next: Two?")
    await answer_both(server, stream)
    for tab in (page, writer):
        await expect(tab.locator(".prose")).to_have_text(["Half an answer", "Second."])
        await expect(tab.locator(".queued")).to_have_count(0)
    await writer.close()


async def test_a_question_that_waits_for_another_tab_goes_back_when_that_tab_ends(
    page: Page, server: ScriptedServer
) -> None:
    writer, _ = await ask_meanwhile(page, server)
    await writer.close()
    await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
    await expect(page.locator(".queued")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("Two?")


async def test_an_answer_that_ends_in_another_tab_is_never_shown_as_lost(page: Page, server: ScriptedServer) -> None:
    _, stream = await answer_elsewhere(page, server, "An answer")
    states = """() => new MutationObserver(() => {
      window.states = (window.states ?? "") + document.querySelector(".answer").dataset.state + " ";
    }).observe(document.querySelector(".answer"), { attributes: true, attributeFilter: ["data-state"] })"""
    await page.evaluate(states)
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    assert "interrupted" not in await page.evaluate("window.states")
