"""The text of a rejected message returns to the field, and no text is lost."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.api.serving import make_app, serving
from tests.e2e.browsing import ask, begin, last_answer, new_page
from tests.e2e.scripted import ScriptedServer
from tests.fakes import FakeEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOO_LONG = "This model's maximum context length is 2048 tokens."
BUSY = "256 requests wait already; try again in a moment."
REJECTIONS = [
    ("context_length_exceeded", 400, f"{TOO_LONG} (context_length_exceeded)", TOO_LONG),
    ("overloaded", 503, BUSY, BUSY),
]
QUESTION = "A question\nof two lines"


def question_field(page: Page) -> Locator:
    return page.get_by_label("Your question")


@pytest.mark.parametrize(("code", "status", "reason", "shown"), REJECTIONS)
async def test_a_rejected_message_returns_to_the_field_and_its_edit_replaces_it(
    page: Page, server: ScriptedServer, code: str, status: int, reason: str, shown: str
) -> None:
    await (await begin(page, server, "Before?")).answer("Well.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, QUESTION)
    await expect(question_field(page)).to_have_value("")
    await (await server.next_stream()).error(code, status, reason)
    await expect(question_field(page)).to_have_value(QUESTION)
    await expect(question_field(page)).to_be_focused()
    alert = page.get_by_role("alert").locator("[dir]")
    await expect(alert).to_have_text(f"{shown} Your message is back in the field below.")
    await page.keyboard.type(", shorter")
    await page.keyboard.press("Enter")
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["Before?", "Well.", QUESTION + ", shorter"]
    await expect(page.locator(".question p")).to_have_text(["Before?", QUESTION + ", shorter"])
    await stream.answer("Yes.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Yes.")
    await expect(question_field(page)).to_have_value("")


async def test_newly_typed_text_stays_and_the_rejected_message_can_be_edited(
    page: Page, server: ScriptedServer
) -> None:
    await (await begin(page, server, "Before?")).answer("Well.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, QUESTION)
    stream = await server.next_stream()
    await question_field(page).fill("A new thought")
    await stream.error("overloaded", 503, "Try again in a moment.")
    await expect(page.get_by_role("alert")).to_contain_text("Try again in a moment.")
    await expect(question_field(page)).to_have_value("A new thought")
    await question_field(page).press("Enter")
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["Before?", "Well.", "A new thought"]
    await stream.answer("Indeed.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(page.locator(".question p")).to_have_text(["Before?", QUESTION, "A new thought"])
    await question_field(page).fill("And more")
    await page.get_by_role("button", name="Edit", exact=True).click()
    await expect(question_field(page)).to_have_value(f"{QUESTION}\n\nAnd more")
    await expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    await question_field(page).press("Enter")
    stream = await server.next_stream()
    expected = ["Before?", "Well.", "A new thought", "Indeed.", f"{QUESTION}\n\nAnd more"]
    assert [m["content"] for m in stream.request["messages"]] == expected
    questions = ["Before?", "A new thought", f"{QUESTION}\n\nAnd more"]
    await expect(page.locator(".question p")).to_have_text(questions)
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(questions)


async def test_a_repetition_that_is_rejected_leaves_the_first_answer(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, "Two?")
    await (await server.next_stream()).answer("Second.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await last_answer(page).get_by_role("button", name="Answer again").click()
    await (await server.next_stream()).error("overloaded", 503, "Try again in a moment.")
    await expect(question_field(page)).to_have_value("Two?")
    await question_field(page).press("Enter")
    await (await server.next_stream()).answer("Other.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Other.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(["One?", "Two?"])
    await expect(last_answer(page).locator(".prose")).to_have_text("Other.")
    await page.locator(".question").last.get_by_role("button", name="Previous branch").click()
    await expect(page.locator(".question p")).to_have_text(["One?", "Two?"])
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")


async def test_a_retried_message_leaves_the_field(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, QUESTION)).error("overloaded", 503, "Try again in a moment.")
    await expect(question_field(page)).to_have_value(QUESTION)
    await page.get_by_role("button", name="Try again").click()
    assert (await server.next_stream()).request["messages"][0]["content"] == QUESTION
    await expect(question_field(page)).to_have_value("")


async def test_a_rejected_message_is_in_the_field_after_a_reload(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, QUESTION)).error("overloaded", 503, "Try again in a moment.")
    await expect(question_field(page)).to_have_value(QUESTION)
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("back in the field")
    await expect(question_field(page)).to_have_value(QUESTION)
    await expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await question_field(page).press("Enter")
    assert (await server.next_stream()).request["messages"][0]["content"] == QUESTION
    await expect(page.locator(".question p")).to_have_text([QUESTION])


async def test_an_answer_that_fails_with_text_keeps_its_question(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await stream.error("engine_error", 500, "The engine failed.")
    await expect(page.get_by_role("alert")).to_contain_text("The engine failed.")
    await expect(question_field(page)).to_have_value("")


async def test_a_message_above_the_frame_limit_returns_to_the_field(browser: Browser) -> None:
    """The server closes the connection; the page reconnects, and a shorter message can be sent."""
    async with serving(await make_app(FakeEngine(), max_request_bytes=4096)) as url:
        context, page = await new_page(browser)
        await page.goto(url)
        await ask(page, "word " * 2000)
        await expect(page.get_by_role("alert")).to_contain_text("too large for this server")
        await expect(question_field(page)).to_have_value(("word " * 2000).strip())
        await ask(page, "Shorter.")
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await context.close()
