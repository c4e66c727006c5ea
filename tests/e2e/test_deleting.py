"""A turn, or one version of an answer, is deleted and put back; the rest of the conversation stays."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, stored, until_last, until_stored
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

TURN = "Delete question and answer"


def contents(stream: Stream) -> list[str]:
    """The messages of a request."""
    return [message["content"] for message in stream.request["messages"]]


async def converse(page: Page, server: ScriptedServer) -> None:
    """Three turns."""
    await (await begin(page, server, "One?")).answer("First.")
    for question, text in (("Two?", "Second."), ("Three?", "Third.")):
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await ask(page, question)
        await (await server.next_stream()).answer(text)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await until_last(page, "messages", text="Third.", state="done")


async def check(page: Page, questions: list[str], answers: list[str]) -> None:
    """What is shown, now and after a reload."""
    await expect(page.locator(".question p")).to_have_text(questions)
    await expect(page.locator(".prose")).to_have_text(answers)
    await until_stored(page, "messages", len(questions) + len(answers))
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(questions)
    await expect(page.locator(".prose")).to_have_text(answers)


@pytest.mark.parametrize("of", [".question", ".answer"])
async def test_a_turn_is_deleted_and_put_back_in_its_place(page: Page, server: ScriptedServer, of: str) -> None:
    await converse(page, server)
    await page.locator(of).nth(1).hover()
    await page.locator(of).nth(1).get_by_role("button", name=TURN).click()
    await expect(page.locator(".toast")).to_contain_text("The question and its answer were deleted.")
    await expect(page.locator(".question p")).to_have_text(["One?", "Three?"])
    await ask(page, "Four?")
    stream = await server.next_stream()
    assert contents(stream) == ["One?", "First.", "Three?", "Third.", "Four?"]
    await stream.answer("Fourth.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Undo").click()
    await check(page, ["One?", "Two?", "Three?", "Four?"], ["First.", "Second.", "Third.", "Fourth."])


async def test_deleted_turns_stay_deleted(page: Page, server: ScriptedServer) -> None:
    await converse(page, server)
    for index in (2, 0):
        await page.locator(".answer").nth(index).get_by_role("button", name=TURN).click()
    await check(page, ["Two?"], ["Second."])
    assert [record["title"] for record in await stored(page, "conversations")] == ["Two?"]


async def test_one_version_of_an_answer_is_deleted_with_what_followed_it(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Answer again").click()
    await (await server.next_stream()).answer("Other.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, "Two?")
    await (await server.next_stream()).answer("Second.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Delete this answer").click()
    await expect(page.locator(".toast")).to_contain_text("The answer was deleted, with all that followed it.")
    await expect(page.locator(".prose")).to_have_text(["First."])
    await expect(page.locator(".branches")).to_have_count(0)
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator(".prose")).to_have_text(["Other.", "Second."])
    await expect(page.get_by_role("group", name="Branch 2 of 2")).to_be_visible()


async def test_the_only_turn_is_deleted_with_its_conversation(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_label("Your question").fill("Half")
    await last_answer(page).get_by_role("button", name=TURN).click()
    await expect(page.locator(".welcome")).to_be_visible()
    await expect(page.locator(".toast")).to_contain_text("“One?” was deleted.")
    await expect(page.get_by_label("Your question")).to_have_value("Half")
    await until_stored(page, "messages", 0)
    await page.get_by_role("button", name="Undo").click()
    await until_stored(page, "messages", 2)
    await expect(page.locator(".prose")).to_have_text("First.")
    await expect(page.get_by_label("Your question")).to_have_value("Half")


async def test_what_one_tab_deletes_and_puts_back_another_tab_follows(page: Page, server: ScriptedServer) -> None:
    await converse(page, server)
    other = await page.context.new_page()
    await other.goto(page.url)
    # This page has written the messages, and knows what it has written without the storage.
    await other.locator(".answer").nth(1).get_by_role("button", name=TURN).click()
    await expect(page.locator(".question p")).to_have_text(["One?", "Three?"])
    await other.get_by_role("button", name="Undo").click()
    await expect(page.locator(".question p")).to_have_text(["One?", "Two?", "Three?"])
    await other.close()


async def test_an_answer_that_another_tab_writes_is_not_deleted(page: Page, server: ScriptedServer) -> None:
    writer = await page.context.new_page()
    stream = await begin(writer, server, "One?")
    await stream.delta("Half an")
    await until_last(writer, "messages", state="streaming")
    await page.goto(writer.url)
    await page.locator(".question").hover()
    await page.locator(".question").get_by_role("button", name=TURN).click()
    await expect(page.locator(".toast")).to_contain_text("another tab is writing the answer")
    await expect(page.locator(".question p")).to_have_text("One?")
    await writer.close()


@pytest.mark.motion
async def test_a_long_pasted_text_is_folded(page: Page, server: ScriptedServer) -> None:
    text = "\n".join(f"line {number} of a log" for number in range(200))
    stream = await begin(page, server, text)
    assert contents(stream)[0] == text
    question = page.locator(".question p")
    unfold = page.get_by_role("button", name="Show all")
    await expect(unfold).to_have_text(f"Show all {len(text):,} characters")
    assert len(await question.inner_text()) < 2000
    await unfold.click()
    await expect(question).to_have_text(text)
    await expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
    assert await page.locator(".log").evaluate("(log) => log.scrollTop") == 0
    await page.get_by_role("button", name="Show less").click()
    await expect(unfold).to_be_visible()
