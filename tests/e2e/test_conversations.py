"""The list of conversations: kept, searched, renamed, pinned, deleted, exported, imported, and shared by tabs."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.browsing import (
    PageWatch,
    ask,
    begin,
    last_answer,
    new_page,
    stored,
    until_last,
    until_stored,
    until_true,
)
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A reading of messages waits until the page calls `release`.
HOLD_MESSAGES = """async () => {
  const request = indexedDB.open("quire");
  await new Promise((resolve) => (request.onsuccess = resolve));
  const store = request.result.transaction("messages", "readwrite").objectStore("messages");
  let isHeld = true;
  window.release = () => (isHeld = false);
  const goOn = () => isHeld && (store.get("none").onsuccess = goOn);
  goOn();
}"""
# The 10 seconds of the messages at the edge are over when the test calls `endToast`.
HOLD_TOASTS = """
const { setTimeout: wait } = window;
window.setTimeout = (run, ms, ...rest) => {
  if (ms !== 10_000) return wait(run, ms, ...rest);
  window.endToast = run;
  return 0;
};
"""
HOSTILE = '<img src=x onerror="document.title=1"> **bold** [x](javascript:1)'


def entries(page: Page) -> Locator:
    """The lines of the list."""
    return page.locator(".conversation")


async def open_list(page: Page) -> None:
    """Show the list; it is open at first on a wide window with conversations."""
    await expect(page.locator(".body")).to_have_attribute("aria-busy", "false")
    button = page.get_by_role("button", name="Conversations", exact=True)
    if await button.get_attribute("aria-expanded") == "false":
        await button.click()
    await expect(page.locator(".sidebar")).to_be_visible()


async def choose(page: Page, title: str, action: str) -> None:
    """Choose an action in the menu of a conversation."""
    await page.get_by_role("button", name=f"Actions for {title}").click()
    await entries(page).get_by_role("button", name=action, exact=True).click()


async def converse(page: Page, server: ScriptedServer, *pairs: tuple[str, str]) -> None:
    """Make one conversation of each pair of a question and its answer."""
    await page.goto(server.url)
    for question, answer in pairs:
        await page.get_by_role("button", name="New chat").click()
        await ask(page, question)
        await (await server.next_stream()).answer(answer, size=100)
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await open_list(page)
    await expect(entries(page)).to_have_count(len(pairs))


async def test_conversations_stay_and_are_found_by_title_and_text(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("How is bread made?", "With yeast."), ("What is paper?", "Pressed fibres."))
    await page.goto(server.url)
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text(["What is paper?", "How is bread made?"])
    await page.keyboard.press("Control+k")
    search = page.get_by_label("Search conversations")
    await expect(search).to_be_focused()
    await search.fill("YEAST how")
    await expect(entries(page).locator("bdi")).to_have_text(["How is bread made?"])
    await entries(page).get_by_role("button", name="How is bread made?").first.click()
    await expect(last_answer(page).locator(".prose")).to_have_text("With yeast.")
    await search.fill("glue")
    await expect(page.get_by_text("No conversation contains “glue”.")).to_be_visible()


async def test_a_conversation_is_renamed_and_pinned(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("One?", "1"), ("Two?", "2"))
    await choose(page, "One?", "Rename")
    field = page.get_by_label("Title", exact=True)
    await field.fill(HOSTILE)
    await field.press("Enter")
    await expect(entries(page).locator("bdi")).to_have_text(["Two?", HOSTILE])
    await choose(page, HOSTILE, "Pin")
    await expect(entries(page).locator("bdi")).to_have_text([HOSTILE, "Two?"])
    await ask(page, "Three?")
    await (await server.next_stream()).answer("3")
    await page.reload()
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text([HOSTILE, "Two?"])
    await expect(entries(page).locator("img, strong, a")).to_have_count(0)
    assert (await page.title()).endswith("Quire")


async def test_the_menu_of_each_conversation_is_in_view(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    conversations = [
        {"id": f"c{number}", "title": f"Number {number}", "createdAt": number, "updatedAt": number, "messages": []}
        for number in range(10, 60)
    ]
    archive = {"format": "quire.conversations", "version": 1, "conversations": conversations}
    (tmp_path / "archive.json").write_text(json.dumps(archive))
    await page.goto(server.url)
    await open_list(page)
    await import_file(page, tmp_path / "archive.json")
    await expect(entries(page)).to_have_count(50)
    for number in (59, 40, 10):
        await page.get_by_role("button", name=f"Actions for Number {number}").click()
        for name in ("Rename", "Delete"):
            button = entries(page).get_by_role("button", name=name, exact=True)
            await expect(button).to_be_in_viewport(ratio=1)
        await page.keyboard.press("Escape")


async def test_a_deleted_conversation_comes_back_with_undo(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("One?", "1"), ("Two?", "2"))
    await page.get_by_role("button", name="Edit answer").click()
    await page.get_by_label("Edit the answer").fill("My own.")
    await choose(page, "Two?", "Delete")
    await expect(entries(page)).to_have_count(1)
    await expect(page.locator("article")).to_have_count(0)
    await expect(page.get_by_role("button", name="Undo")).to_be_visible()
    edits = "Object.keys(sessionStorage).filter((name) => name.startsWith('quire.edit.')).length"
    assert await page.evaluate(edits) == 0
    await page.get_by_role("button", name="Undo").click()
    await expect(entries(page)).to_have_count(2)
    await expect(page.get_by_label("Edit the answer")).to_have_value("My own.")
    await page.get_by_role("button", name="Cancel").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("2")


@pytest.mark.parametrize("by", ["the list", "its turn"])
async def test_an_answer_that_is_deleted_while_it_is_written_comes_back_as_far_as_it_was(
    page: Page, server: ScriptedServer, by: str
) -> None:
    server.keeps = True
    stream = await begin(page, server, "One?")
    await stream.delta("Half of", 3)
    await stream.delta(" it", 2)
    await expect(last_answer(page).locator(".tokens b")).to_have_text("5")
    await open_list(page)
    if by == "the list":
        await choose(page, "One?", "Delete")
    else:
        await page.locator(".question").hover()
        await page.get_by_role("button", name="Delete question").click()
    await expect(entries(page)).to_have_count(0)
    await stream.cancelled.wait()
    await page.get_by_role("button", name="Undo").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Half of it")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped.")
    await expect(last_answer(page).locator(".tokens b")).to_have_text("5")
    await expect(page.get_by_role("button", name="Continue answer")).to_be_visible()


async def test_selected_conversations_are_deleted_together(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("One?", "1"), ("Two?", "2"), ("Three?", "3"))
    await page.get_by_role("button", name="Select", exact=True).click()
    colour = "button => getComputedStyle(button).color"
    none, export = (page.get_by_role("button", name=name, exact=True) for name in ("Delete 0", "Export"))
    assert await none.evaluate(colour) == await export.evaluate(colour)
    for title in ("One?", "Three?"):
        await page.get_by_role("checkbox", name=title).check()
    await page.get_by_role("button", name="Delete 2").click()
    await expect(entries(page).locator("bdi")).to_have_text(["Two?"])
    await expect(page.get_by_text("2 conversations were deleted.")).to_be_visible()
    assert {message["text"] for message in await stored(page)} == {"Two?", "2"}


async def exported(page: Page, tmp_path: Path, button: Locator, name: str) -> Path:
    """The file that a button offers."""
    async with page.expect_download() as download:
        await button.click()
    file = tmp_path / name
    await (await download.value).save_as(file)
    return file


async def import_file(page: Page, file: Path) -> None:
    """Choose a file to import."""
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files(file)


async def test_selected_conversations_are_exported_together(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    await converse(page, server, ("One?", "1"), ("Two?", "2"), ("Three?", "3"))
    await page.get_by_role("button", name="Select", exact=True).click()
    for title in ("One?", "Three?"):
        await page.get_by_role("checkbox", name=title).check()
    file = await exported(page, tmp_path, page.get_by_role("button", name="Export", exact=True), "some.json")
    archive = json.loads(file.read_text())
    texts = {one["title"]: {each["text"] for each in one["messages"]} for one in archive["conversations"]}
    assert texts == {"One?": {"One?", "1"}, "Three?": {"Three?", "3"}}
    await expect(page.get_by_role("checkbox")).to_have_count(0)


async def test_the_first_search_says_that_it_reads(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("One?", "bread"))
    await page.evaluate(HOLD_MESSAGES)
    await page.get_by_label("Search conversations").fill("bread")
    await expect(page.get_by_text("Searching…")).to_be_visible()
    await expect(page.get_by_text("No conversation contains")).to_have_count(0)
    await page.evaluate("release()")
    await expect(entries(page)).to_have_count(1)


@pytest.mark.parametrize("kind", ["json", "md"])
async def test_an_export_can_be_imported_by_another_browser(
    browser: Browser, page: Page, server: ScriptedServer, tmp_path: Path, kind: str
) -> None:
    await converse(page, server, ("How is bread made?", f"With yeast. {HOSTILE}"))
    if kind == "json":
        button = page.get_by_role("button", name="Export all")
    else:
        await page.get_by_role("button", name="Actions for How is bread made?").click()
        button = page.get_by_role("button", name="Export as Markdown")
    file = await exported(page, tmp_path, button, f"export.{kind}")
    context, other = await new_page(browser)
    watch = PageWatch(other)
    await other.goto(server.url)
    await open_list(other)
    await import_file(other, file)
    await expect(other.get_by_text("One conversation was imported.")).to_be_visible()
    await entries(other).get_by_role("button", name="How is bread made?").first.click()
    await expect(last_answer(other).locator(".prose")).to_contain_text("With yeast.")
    await expect(last_answer(other).locator(".prose img")).to_have_count(0)
    await expect(other.locator(".question p")).to_have_text("How is bread made?")
    if kind == "json":
        await import_file(other, file)
        await expect(other.get_by_text("No conversations were imported. 1 is here already")).to_be_visible()
        await expect(entries(other)).to_have_count(1)
        file.write_text(file.read_text().replace("With yeast.", "Without."))
        await import_file(other, file)
        await expect(other.get_by_text("1 existed already and were added as copies.")).to_be_visible()
        await expect(entries(other)).to_have_count(2)
    await watch.check(other, server.url)
    await context.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "Choose a .json or .md file"),
        ('{"format": "quire.conversations", "version": 9, "conversations": []}', "this page reads version 1"),
        ('{"format": "quire.conversations", "version": 1, "conversations": [{"id": 5}]}', "Conversation 1"),
        ('{"messages": []}', "no conversations of Quire"),
    ],
)
async def test_a_file_that_cannot_be_imported_changes_nothing_and_says_why(
    page: Page, server: ScriptedServer, tmp_path: Path, text: str, says: str
) -> None:
    await converse(page, server, ("One?", "1"))
    await until_stored(page, "conversations", 1)
    (tmp_path / "bad.json").write_text(text)
    await import_file(page, tmp_path / "bad.json")
    await expect(page.get_by_text(says)).to_be_visible()
    assert len(await stored(page, "conversations")) == 1


async def test_a_file_above_50_mb_is_not_read(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    await converse(page, server, ("One?", "1"))
    await until_stored(page, "conversations", 1)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(51 * 2**20)
    await import_file(page, tmp_path / "large.json")
    await expect(page.get_by_text("The file has 51 MB; at most 50 MB are imported at once.")).to_be_visible()
    assert len(await stored(page, "conversations")) == 1


async def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("One?", "1"))
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Long?")
    stream = await server.next_stream()
    await entries(page).get_by_role("button", name="One?").first.click()
    await expect(last_answer(page).locator(".prose")).to_have_text("1")
    await expect(entries(page).get_by_label("An answer is being written")).to_have_count(1)
    await stream.answer("Written meanwhile.")
    await expect(entries(page).get_by_label("An answer is being written")).to_have_count(0)
    await entries(page).get_by_role("button", name="Long?").first.click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Written meanwhile.")


async def test_tabs_agree_and_two_answers_in_one_conversation_are_two_branches(
    page: Page, server: ScriptedServer
) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await until_last(page, "messages", text="First.", state="done")
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(last_answer(other).locator(".prose")).to_have_text("First.")
    await ask(page, "From the first tab?")
    mine = await server.next_stream()
    await mine.delta("One")
    await expect(other.locator(".question p")).to_have_text(["One?", "From the first tab?"])
    await expect(last_answer(other).locator(".standing")).to_have_text("being written in another tab")
    # What is asked below that answer waits for it; in the place of its question it does not.
    await other.locator(".question").last.hover()
    await other.locator(".question").last.get_by_role("button", name="Edit question").click()
    await other.get_by_label("Edit your question").fill("From the second tab?")
    await other.keyboard.press("Enter")
    theirs = await server.next_stream()
    assert [message["content"] for message in theirs.request["messages"]] == ["One?", "First.", "From the second tab?"]
    await theirs.answer("Two.")
    await mine.delta(" more.")
    await mine.done()
    await expect(last_answer(page).locator(".prose")).to_have_text("One more.")
    await expect(page.locator(".question").last.locator(".branches")).to_contain_text("1/2")
    await expect(other.locator(".question").last.locator(".branches")).to_contain_text("2/2")
    await page.locator(".question").last.get_by_role("button", name="Next branch").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Two.")
    await open_list(page)
    await choose(page, "One?", "Delete")
    await expect(other.locator("article")).to_have_count(0)


@pytest.mark.own_page
async def test_a_conversation_of_a_private_window_stays_until_it_is_closed(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    await page.goto(server.url)
    await expect(page.get_by_role("alert")).to_contain_text("This browser stores nothing for this page")
    await ask(page, "One?")
    await (await server.next_stream()).answer("First.")
    await expect(last_answer(page).locator(".prose")).to_have_text("First.")
    await open_list(page)
    await expect(entries(page)).to_have_count(1)
    await page.get_by_role("button", name="New chat").click()
    await entries(page).get_by_role("button", name="One?").first.click()
    await expect(last_answer(page).locator(".prose")).to_have_text("First.")


async def test_a_server_that_is_killed_in_mid_answer_loses_nothing_that_was_shown(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await stream.drop(1011)
    await expect(page.get_by_role("alert")).to_contain_text("lost before the answer was complete")
    await page.reload()
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await expect(page.get_by_role("alert")).to_contain_text("lost before the answer was complete")
    await page.get_by_role("button", name="Continue", exact=True).click()
    assert (await server.next_stream()).request["messages"][-1]["content"] == "Once upon"
    record = json.dumps(await stored(page))
    assert "Once upon" in record


async def test_a_conversation_that_was_shown_when_it_was_deleted_is_shown_again_by_undo(
    page: Page, server: ScriptedServer
) -> None:
    await converse(page, server, ("One?", "1"), ("Two?", "2"))
    await entries(page).get_by_role("button", name="One?").first.click()
    await expect(last_answer(page).locator(".prose")).to_have_text("1")
    await choose(page, "One?", "Delete")
    await expect(page.locator(".welcome")).to_be_visible()
    await page.get_by_role("button", name="Undo").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("1")
    await choose(page, "Two?", "Delete")
    await page.get_by_role("button", name="Undo").click()
    await expect(entries(page)).to_have_count(2)
    await expect(last_answer(page).locator(".prose")).to_have_text("1")


@pytest.mark.own_page
async def test_a_message_at_the_edge_disappears_after_its_time(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script(HOLD_TOASTS)
    await converse(page, server, ("One?", "1"))
    await choose(page, "One?", "Delete")
    await expect(page.get_by_role("button", name="Undo")).to_be_visible()
    await until_true(page, "'endToast' in window")
    await page.evaluate("endToast()")
    await expect(page.locator(".toast")).to_have_count(0)
    await expect(entries(page)).to_have_count(0)
