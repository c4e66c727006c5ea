"""A conversation that fills the model's context: its oldest turns are dropped or summarized, and nothing is lost."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e.browsing import ask, begin, last_answer, stored, until_last
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTEXT = 1000
TOO_LONG = "The request has 1300 tokens; the model's context has 1000."


def choice(page: Page) -> Locator:
    """What the page offers when room is short."""
    return page.locator(".context-choice")


def cut(page: Page) -> Locator:
    """The line above which messages are not sent."""
    return page.locator(".cut")


def contents(stream: Stream) -> list[str]:
    """The messages of a request."""
    return [message["content"] for message in stream.request["messages"]]


async def finish(page: Page, stream: Stream, text: str, tokens: int) -> None:
    """Answer, with the tokens that the conversation has then."""
    await stream.delta(text)
    await stream.send("finish", i=0, n=1, finish_reason="stop")
    await stream.send("done", usage={"prompt_tokens": tokens - 1, "completion_tokens": 1, "total_tokens": tokens})
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator(".prose")).to_have_text(text)


async def fill(page: Page, server: ScriptedServer, tokens: int = 900) -> None:
    """Three turns that take `tokens` together."""
    server.details = {"max_model_len": CONTEXT}
    await finish(page, await begin(page, server, "One?"), "First", 300)
    for question, text, count in (("Two?", "Other", 600), ("End?", "Third", tokens)):
        await ask(page, question)
        await finish(page, await server.next_stream(), text, count)


async def test_dropped_turns_stay_and_are_not_sent_until_they_are_sent_again(
    page: Page, server: ScriptedServer
) -> None:
    await fill(page, server)
    await expect(page.locator(".context")).to_have_attribute("data-full", "true")
    await expect(page.get_by_title("Tokens of the last answer and of what the model has read for it")).to_be_visible()
    await expect(choice(page)).to_contain_text("nearly full. Leave out the oldest 2 turns?")
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(choice(page)).to_have_count(0)
    await expect(cut(page)).to_contain_text("not sent to the model any more")
    await expect(page.locator(".context")).to_contain_text("300 of 1,000 tokens")
    await page.reload()
    await expect(cut(page)).to_be_visible()
    await expect(page.locator(".cut ~ .question")).to_have_count(1)
    await expect(page.locator(".question")).to_have_count(3)
    await ask(page, "Four?")
    stream = await server.next_stream()
    assert contents(stream) == ["End?", "Third", "Four?"]
    await finish(page, stream, "Fourth", 400)
    await cut(page).get_by_role("button", name="Send them again").click()
    await expect(cut(page)).to_contain_text("sent to the model again")
    await page.reload()
    await expect(cut(page)).to_contain_text("sent to the model again")
    await ask(page, "Five?")
    assert contents(await server.next_stream()) == [
        *("One?", "First", "Two?", "Other", "End?", "Third", "Four?", "Fourth", "Five?")
    ]


async def test_what_is_not_sent_any_more_is_shown_so(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    left_out = page.locator("[data-sent=false]")
    await expect(left_out).to_have_count(0)
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(left_out).to_have_count(4)
    await expect(left_out.first.get_by_role("heading")).to_have_text("You asked, not sent any more")
    colour = "element => getComputedStyle(element).color"
    assert await left_out.nth(1).locator("p").evaluate(colour) != await last_answer(page).locator("p").evaluate(colour)
    await cut(page).get_by_role("button", name="Send them again").click()
    await expect(left_out).to_have_count(0)


async def test_the_choice_comes_while_the_next_answer_has_room(page: Page, server: ScriptedServer) -> None:
    await fill(page, server, tokens=740)
    await expect(choice(page)).to_have_count(0)
    await ask(page, "More?")
    await finish(page, await server.next_stream(), "More", 760)
    await expect(choice(page).get_by_role("button", name="Summarize")).to_be_enabled()


async def test_a_summary_is_not_offered_where_it_cannot_fit(page: Page, server: ScriptedServer) -> None:
    server.details = {"max_model_len": CONTEXT}
    await finish(page, await begin(page, server, "Tell a long story."), "Once upon a time", 999)
    await expect(choice(page)).to_contain_text("There is no room to let the model summarize it.")
    await expect(choice(page).get_by_role("button")).to_have_text(["Drop"])
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(choice(page)).to_have_count(0)


async def test_a_summary_that_the_server_refused_as_too_long_is_not_offered_again_and_goes_with_the_drop(
    page: Page, server: ScriptedServer
) -> None:
    await fill(page, server)
    await choice(page).get_by_role("button", name="Summarize").click()
    await (await server.next_stream()).error("context_length_exceeded", 400, TOO_LONG)
    await expect(choice(page)).to_contain_text("The summary does not fit the model's context.")
    await expect(choice(page).get_by_role("button")).to_have_text(["Drop"])
    await expect(page.get_by_role("alert").get_by_role("button")).to_have_text(["Try again"])
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.locator(".summary-ask")).to_have_count(0)
    await ask(page, "Four?")
    assert contents(await server.next_stream()) == ["End?", "Third", "Four?"]


async def test_an_answer_that_the_context_has_ended_says_what_helps(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await ask(page, "Four?")
    stream = await server.next_stream()
    await stream.delta("Cut", tokens=35)
    await stream.send("finish", i=0, n=35, finish_reason="length")
    await stream.send("done", usage={"prompt_tokens": CONTEXT - 35, "completion_tokens": 35, "total_tokens": CONTEXT})
    ending = last_answer(page).locator(".ending")
    await expect(ending).to_contain_text("The conversation fills the model's context: drop or summarize older turns")
    await expect(choice(page).get_by_role("button", name="Drop")).to_be_visible()
    await page.reload()
    await expect(ending).to_contain_text("The conversation fills the model's context")


async def test_the_words_of_a_summary_are_not_shown_as_the_users(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await choice(page).get_by_role("button", name="Summarize").click()
    stream = await server.next_stream()
    await expect(page.locator(".question")).to_have_count(3)
    words = page.get_by_text("Summarize our conversation")
    await expect(words).to_be_hidden()
    await page.locator(".summary-ask summary").click()
    await expect(words).to_be_visible()
    await finish_summary(stream)
    await expect(cut(page)).to_be_visible()
    await page.get_by_label("Your question").focus()
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_label("Edit your question")).to_have_value("End?")


async def test_a_refused_message_goes_back_without_its_box_when_turns_are_dropped(
    page: Page, server: ScriptedServer
) -> None:
    await fill(page, server)
    await ask(page, "A long question")
    await (await server.next_stream()).error("context_length_exceeded", 400, TOO_LONG)
    await expect(page.get_by_role("alert")).to_contain_text("back in the field")
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("A long question")


async def test_the_meter_counts_an_answer_that_is_continued_with_its_prompt(page: Page, server: ScriptedServer) -> None:
    server.details = {"max_model_len": CONTEXT}
    stream = await begin(page, server, "One?")
    await stream.delta("Half an", tokens=40)
    await stream.done("length")
    await expect(page.locator(".context")).to_contain_text("49 of 1,000 tokens")
    await page.get_by_role("button", name="Continue answer").click()
    stream = await server.next_stream()
    await stream.delta(" answer", tokens=3)
    await expect(page.locator(".context")).to_contain_text("52 of 1,000 tokens")
    await expect(last_answer(page).locator(".tokens")).to_have_text("43 tokens")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".context")).to_contain_text("52 of 1,000 tokens")
    await page.get_by_role("button", name="Continue answer").click()
    await (await server.next_stream()).delta(" at last", tokens=2)
    await expect(last_answer(page).locator(".tokens")).to_have_text("45 tokens")


async def test_a_branch_from_before_a_cut_has_all_turns(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(cut(page)).to_be_visible()
    await last_answer(page).get_by_role("button", name="Answer again").click()
    stream = await server.next_stream()
    assert contents(stream) == ["One?", "First", "Two?", "Other", "End?"]
    await finish(page, stream, "Again", 600)
    await expect(cut(page)).to_have_count(0)
    await last_answer(page).get_by_role("button", name="Previous branch").click()
    await expect(cut(page)).to_be_visible()


async def test_a_summary_stands_in_for_the_older_turns_and_can_be_undone(
    page: Page, server: ScriptedServer, tmp_path: Path
) -> None:
    await fill(page, server)
    await choice(page).get_by_role("button", name="Summarize").click()
    stream = await server.next_stream()
    assert contents(stream)[:-1] == ["One?", "First", "Two?", "Other"]
    instruction = contents(stream)[-1]
    assert instruction.startswith("Summarize our conversation")
    await ask(page, "Four?")  # waits for the summary
    await finish_summary(stream)
    stream = await server.next_stream()
    kept = [instruction, "In short", "End?", "Third"]
    assert contents(stream) == [*kept, "Four?"]
    await finish(page, stream, "Fourth", 400)
    await expect(cut(page)).to_contain_text("the summary below is sent in their place")
    await page.reload()
    await expect(cut(page)).to_contain_text("the summary below is sent in their place")
    await ask(page, "Five?")
    stream = await server.next_stream()
    assert contents(stream) == [*kept, "Four?", "Fourth", "Five?"]
    await finish(page, stream, "Fifth", 500)
    await cut(page).get_by_role("button", name="Send them again").click()
    await expect(cut(page)).to_contain_text("sent to the model again")
    await ask(page, "Six?")
    stream = await server.next_stream()
    assert contents(stream)[:6] == ["One?", "First", "Two?", "Other", "End?", "Third"]
    assert instruction not in contents(stream)
    await finish(page, stream, "Sixth", 600)
    await cut(page).get_by_role("button", name="Leave them out").click()
    await expect(cut(page)).to_contain_text("in their place")
    await check_export(page, tmp_path)


async def finish_summary(stream: Stream) -> None:
    await stream.delta("In short")
    await stream.send("finish", i=0, n=1, finish_reason="stop")
    await stream.send("done", usage={"prompt_tokens": 700, "completion_tokens": 20, "total_tokens": 720})


async def check_export(page: Page, folder: Path) -> None:
    """Import the exported conversation with another word, as a copy: the cut is in it."""
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export all").click()
    await (await download.value).save_as(folder / "exported.json")
    exported = json.loads((folder / "exported.json").read_text())
    messages = exported["conversations"][0]["messages"]
    assert [message["keeps"] for message in messages if "keeps" in message] == [3]
    messages[0]["text"] += " Please."
    (folder / "exported.json").write_text(json.dumps(exported))
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files(folder / "exported.json")
    await expect(page.locator(".conversation")).to_have_count(2)
    shown = page.url
    await page.locator(".conversation:not([data-current='true']) .conversation-title").click()
    await expect(page).not_to_have_url(shown)
    await expect(cut(page)).to_contain_text("in their place")


async def test_a_summary_that_fails_changes_nothing_and_can_be_tried_again(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await page.get_by_label("Your question").fill("So")
    await choice(page).get_by_role("button", name="Summarize").click()
    stream = await server.next_stream()
    await stream.delta("In sh")
    await stream.error("engine_error", 500, "The engine failed.")
    await expect(page.get_by_role("alert")).to_contain_text("The engine failed.")
    await expect(cut(page)).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("So")
    await expect(choice(page)).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("The engine failed.")
    await page.get_by_role("button", name="Try again").click()
    stream = await server.next_stream()
    assert contents(stream)[:-1] == ["One?", "First", "Two?", "Other"]
    await stream.error("engine_error", 500, "The engine failed again.")
    await expect(page.get_by_role("alert")).to_contain_text("The engine failed again.")
    await expect(page.get_by_label("Your question")).to_have_value("So")
    await ask(page, "Four?")
    assert contents(await server.next_stream()) == ["One?", "First", "Two?", "Other", "End?", "Third", "Four?"]


async def test_a_reload_while_the_summary_is_written_leaves_all_turns(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await choice(page).get_by_role("button", name="Summarize").click()
    await (await server.next_stream()).delta("In sh")
    await expect(last_answer(page)).to_contain_text("In sh")
    await page.reload()
    await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
    await expect(cut(page)).to_have_count(0)
    await last_answer(page).get_by_role("button", name="Continue").click()
    stream = await server.next_stream()
    assert [*contents(stream)[:4], contents(stream)[-1]] == ["One?", "First", "Two?", "Other", "In sh"]
    await stream.delta("ort")
    await stream.done()
    await expect(cut(page)).to_contain_text("in their place")


async def test_a_message_that_is_too_long_goes_back_and_is_sent_after_older_turns_are_dropped(
    page: Page, server: ScriptedServer
) -> None:
    await fill(page, server, tokens=660)
    await expect(choice(page)).to_have_count(0)
    await ask(page, "A long question")
    await (await server.next_stream()).error("context_length_exceeded", 400, TOO_LONG)
    await expect(page.get_by_label("Your question")).to_have_value("A long question")
    await expect(page.get_by_role("alert")).to_contain_text("back in the field")
    await expect(choice(page)).to_contain_text("Your message does not fit beside the conversation.")
    await page.reload()
    await expect(choice(page)).to_contain_text("Your message does not fit")
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(choice(page)).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("A long question")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await page.get_by_label("Your question").press("Enter")
    stream = await server.next_stream()
    assert "One?" not in contents(stream)
    assert contents(stream)[-1] == "A long question"
    await stream.answer("So.")
    await until_last(page, "messages", text="So.", state="done")
    assert [message["keeps"] for message in await stored(page) if "keeps" in message] == [len(contents(stream)) - 1]


async def test_a_first_message_that_is_too_long_only_goes_back(page: Page, server: ScriptedServer) -> None:
    server.details = {"max_model_len": CONTEXT}
    stream = await begin(page, server, "A long question")
    await stream.error("context_length_exceeded", 400, TOO_LONG)
    await expect(page.get_by_role("alert")).to_contain_text("back in the field")
    await expect(page.get_by_label("Your question")).to_have_value("A long question")
    await expect(choice(page)).to_have_count(0)


async def test_a_message_that_is_too_long_alone_says_so_and_offers_nothing_until_it_is_shorter(
    page: Page, server: ScriptedServer
) -> None:
    await fill(page, server)
    await page.get_by_label("Your question").fill("long " * 100)
    await page.get_by_label("Your question").press("Enter")
    await (await server.next_stream()).error("context_length_exceeded", 400, TOO_LONG)
    await expect(page.get_by_label("Your question")).to_have_value(("long " * 100).strip())
    await expect(choice(page)).to_contain_text("Your message alone is too long")
    await expect(choice(page)).to_contain_text(re.compile(r"about [\d,]+ tokens, [\d,]+ more than .+ context of 1,000"))
    await expect(choice(page).get_by_role("button")).to_have_count(0)
    await page.get_by_label("Your question").fill("Short?")
    await expect(choice(page).get_by_role("button", name="Drop")).to_be_visible()


async def test_another_tab_shows_a_cut_and_its_undoing(page: Page, server: ScriptedServer) -> None:
    await fill(page, server)
    await until_last(page, "messages", text="Third", state="done")
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(other.locator(".question")).to_have_count(3)
    await choice(page).get_by_role("button", name="Drop").click()
    await expect(cut(other)).to_contain_text("not sent to the model any more")
    await cut(page).get_by_role("button", name="Send them again").click()
    await expect(cut(other)).to_contain_text("sent to the model again")
    await other.close()
