"""Files that are chosen beside a question, as a phone does, which can neither drop nor paste them."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.browsing import PageWatch, last_answer, new_page
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_typing import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def choose_files(page: Page, *files: Path) -> None:
    """Press the button, and choose files in the browser's window."""
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Attach files").click()
    await (await chooser.value).set_files(files)


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
async def test_chosen_files_are_sent_with_the_question(
    browser: Browser, server: ScriptedServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    context, page = await new_page(browser, **options)
    watch = PageWatch(page)
    (tmp_path / "notes.txt").write_text("a note\n")
    (tmp_path / "plan.md").write_text("# A plan\n")
    await page.goto(server.url)
    await choose_files(page, tmp_path / "notes.txt", tmp_path / "plan.md")
    await expect(page.locator(".composer .file-name")).to_have_text(["notes.txt", "plan.md"])
    await page.get_by_role("button", name="Remove plan.md").click()
    await choose_files(page, tmp_path / "plan.md")
    await expect(page.locator(".composer .file-name")).to_have_text(["notes.txt", "plan.md"])
    await page.get_by_role("button", name="Send").click()
    stream = await server.next_stream()
    assert stream.request["messages"][0]["content"] == "notes.txt:\n```\na note\n```\n\nplan.md:\n```\n# A plan\n```"
    await stream.answer("I see.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await watch.check(page, server.url)
    await context.close()


async def test_a_question_of_files_alone_shows_them_while_it_is_edited(
    page: Page, server: ScriptedServer, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    await page.goto(server.url)
    await choose_files(page, tmp_path / "notes.txt")
    await page.get_by_role("button", name="Send").click()
    await (await server.next_stream()).answer("I see.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.locator(".question").hover()
    await page.get_by_role("button", name="Edit question").click()
    await expect(page.locator(".editor .file-name")).to_have_text("notes.txt")
    await page.get_by_label("Edit your question").press("Enter")
    assert "a note" in (await server.next_stream()).request["messages"][0]["content"]


async def test_chosen_files_are_checked_as_dropped_ones_are(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\0\xff\xfe")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2 * 2**20)
    await page.goto(server.url)
    await choose_files(page, tmp_path / "picture.png", tmp_path / "large.txt")
    await expect(page.locator(".toast")).to_contain_text("“picture.png” is not a text file (UTF-8).")
    await expect(page.locator(".toast")).to_contain_text("“large.txt” has 2.0 MB; at most 1 MB can be attached.")
    await expect(page.locator(".composer .file-name")).to_have_count(0)
