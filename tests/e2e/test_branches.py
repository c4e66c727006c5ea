"""Editing, answering again and continuing make branches; none of them loses a message."""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e.browsing import ask, begin, last_answer, stored, until_last, until_stored
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


def prose(page: Page) -> Locator:
    """The text of the last answer."""
    return last_answer(page).locator(".prose")


def contents(stream) -> list[str]:
    """The messages of a request."""
    return [message["content"] for message in stream.request["messages"]]


async def begin_conversation(page: Page, server: ScriptedServer) -> None:
    """Two questions with their answers."""
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, "Two?")
    await (await server.next_stream()).answer("Second.")
    await expect(prose(page)).to_have_text("Second.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")


async def test_an_edited_question_is_a_branch_and_both_can_be_shown(page: Page, server: ScriptedServer) -> None:
    await begin_conversation(page, server)
    question = page.locator(".question").first
    await question.hover()
    await question.get_by_role("button", name="Edit question").click()
    field = page.get_by_label("Edit your question")
    await expect(field).to_be_focused()
    await field.fill("One, please?")
    await field.press("Enter")
    stream = await server.next_stream()
    assert contents(stream) == ["One, please?"]
    await stream.answer("Other.")
    await expect(prose(page)).to_have_text("Other.")
    await expect(page.locator(".question p")).to_have_text(["One, please?"])
    branches = page.locator(".question .branches")
    await expect(branches).to_contain_text("2/2")
    await branches.get_by_role("button", name="Previous branch").click()
    await expect(page.locator(".question p")).to_have_text(["One?", "Two?"])
    await expect(prose(page)).to_have_text("Second.")
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(["One?", "Two?"])
    await page.locator(".question .branches").get_by_role("button", name="Next branch").click()
    await expect(prose(page)).to_have_text("Other.")


async def test_an_answer_again_is_a_branch_beside_the_first(page: Page, server: ScriptedServer) -> None:
    await begin_conversation(page, server)
    await last_answer(page).get_by_role("button", name="Answer again").click()
    stream = await server.next_stream()
    assert contents(stream) == ["One?", "First.", "Two?"]
    await stream.answer("Third.")
    await expect(prose(page)).to_have_text("Third.")
    branches = last_answer(page).locator(".branches")
    await expect(branches).to_contain_text("2/2")
    await branches.get_by_role("button", name="Previous branch").click()
    await expect(prose(page)).to_have_text("Second.")
    await ask(page, "Three?")
    stream = await server.next_stream()
    assert contents(stream) == ["One?", "First.", "Two?", "Second.", "Three?"]
    await stream.answer("Yes.")
    await expect(prose(page)).to_have_text("Yes.")
    await until_last(page, "messages", text="Yes.", state="done")
    assert sorted(message["text"] for message in await stored(page) if message["role"] == "assistant") == [
        *("First.", "Second.", "Third.", "Yes.")
    ]


async def test_an_edited_answer_is_a_branch_that_the_next_request_contains(page: Page, server: ScriptedServer) -> None:
    await begin_conversation(page, server)
    await last_answer(page).get_by_role("button", name="Edit answer").click()
    field = page.get_by_label("Edit the answer")
    await expect(field).to_have_value("Second.")
    await field.press("Escape")
    await expect(prose(page)).to_have_text("Second.")
    await expect(last_answer(page).get_by_role("button", name="Edit answer")).to_be_focused()
    await page.keyboard.press("Enter")
    await field.fill("My **own**.")
    await field.press("Control+Enter")
    await expect(prose(page).locator("strong")).to_have_text("own")
    await expect(last_answer(page).locator(".ending")).to_have_text("Written by you.")
    assert server.streams.empty()
    await ask(page, "Three?")
    assert contents(await server.next_stream()) == ["One?", "First.", "Two?", "My **own**.", "Three?"]


async def test_what_is_written_in_an_editor_outlives_another_one_and_a_reload(
    page: Page, server: ScriptedServer
) -> None:
    await begin_conversation(page, server)
    await last_answer(page).get_by_role("button", name="Edit answer").click()
    await page.get_by_label("Edit the answer").fill("My own.")
    await page.locator(".question").first.hover()
    await page.get_by_role("button", name="Edit question").first.click()
    await expect(page.get_by_label("Edit your question")).to_have_value("One?")
    await page.reload()
    await expect(page.get_by_label("Edit the answer")).to_have_value("My own.")
    await page.get_by_role("button", name="New chat").click()
    await page.go_back()
    await expect(page.get_by_label("Edit the answer")).to_have_value("My own.")
    await expect(page.locator(".editor")).to_contain_text("Ctrl + Enter saves, Esc cancels")
    await page.get_by_label("Edit the answer").press("Escape")
    await last_answer(page).get_by_role("button", name="Edit answer").click()
    await expect(page.get_by_label("Edit the answer")).to_have_value("Second.")


async def test_an_answer_with_the_text_of_the_one_before_says_so(page: Page, server: ScriptedServer) -> None:
    await begin_conversation(page, server)
    same = page.get_by_text("The same as the answer before. The higher the temperature, the more answers differ.")
    for text, count in (("Second.", 1), ("Another.", 0)):
        await last_answer(page).get_by_role("button", name="Answer again").click()
        await (await server.next_stream()).answer(text)
        await expect(prose(page)).to_have_text(text)
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await expect(same).to_have_count(count)


async def test_only_the_model_that_has_begun_an_answer_is_asked_to_continue_it(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await stream.done("length")
    await expect(last_answer(page).locator(".ending")).to_have_text(
        "Length limit of 1 token reached: see Max tokens in the settings."
    )
    await expect(last_answer(page).get_by_role("button", name="Continue answer")).to_be_visible()
    server.model = "other"
    await page.reload()
    await expect(last_answer(page).locator(".ending")).to_contain_text("wrote this, and the server runs other now")
    await expect(last_answer(page).get_by_role("button", name="Continue answer")).to_have_count(0)
    await expect(last_answer(page).get_by_role("button", name="Answer again")).to_be_enabled()


async def test_a_stopped_answer_is_continued_on_a_branch(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await expect(prose(page)).to_have_text("Once upon")
    await page.keyboard.press("Escape")
    await last_answer(page).get_by_role("button", name="Continue answer").click()
    stream = await server.next_stream()
    assert contents(stream) == ["Tell.", "Once upon"]
    assert stream.request["continue_final_message"] is True
    assert stream.request["add_generation_prompt"] is False
    await stream.delta(" a time.")
    await stream.done()
    await expect(prose(page)).to_have_text("Once upon a time.")
    branches = last_answer(page).locator(".branches")
    await expect(branches).to_contain_text("2/2")
    await branches.get_by_role("button", name="Previous branch").click()
    await expect(prose(page)).to_have_text("Once upon")


async def test_a_server_that_cannot_continue_is_asked_for_the_rest(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await stream.done("length")
    await last_answer(page).get_by_role("button", name="Continue answer").click()
    stream = await server.next_stream()
    error = {"code": "unsupported_parameter", "status": 400, "message": "No.", "param": "continue_final_message"}
    await stream.send("error", **error, fatal=False)
    stream = await server.next_stream()
    assert "continue_final_message" not in stream.request
    assert contents(stream)[:2] == ["Tell.", "Once upon"]
    assert [message["role"] for message in stream.request["messages"]] == ["user", "assistant", "user"]
    await stream.answer(" a time.")
    await expect(prose(page)).to_have_text("Once upon a time.")


async def test_an_interrupted_answer_offers_to_continue(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await expect(prose(page)).to_have_text("Once upon")
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("The rest was not received.")
    await page.get_by_role("button", name="Continue", exact=True).click()
    stream = await server.next_stream()
    assert contents(stream) == ["Tell.", "Once upon"]
    await stream.answer(" a time.")
    await expect(prose(page)).to_have_text("Once upon a time.")
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_arrow_up_in_an_empty_field_edits_the_last_question(page: Page, server: ScriptedServer) -> None:
    await begin_conversation(page, server)
    await page.get_by_label("Your question").press("ArrowUp")
    field = page.get_by_label("Edit your question")
    await expect(field).to_have_value("Two?")
    await field.press("Enter")
    assert contents(await server.next_stream()) == ["One?", "First.", "Two?"]


async def test_a_button_of_the_conversation_before_changes_nothing_in_the_next(
    page: Page, server: ScriptedServer
) -> None:
    await begin_conversation(page, server)
    # Both are pressed before the new conversation is rendered.
    await page.evaluate("""() => {
      const again = document.querySelector("[aria-label='Answer again']");
      document.querySelector("[title^='New chat']").click();
      again.click();
    }""")
    await expect(page.locator("article")).to_have_count(0)
    await ask(page, "Three?")
    assert contents(await server.next_stream()) == ["Three?"]
    await until_stored(page, "conversations", 2)
