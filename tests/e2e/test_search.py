"""A search shows where its words are, and leads there; the list is divided by days."""

import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.browsing import MOVING, PageWatch, ask, begin, last_answer, new_page, until_at_end, until_true
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_conversations import choose, converse, entries, exported, import_file, open_list
from tests.e2e.test_typing import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILLER = "\n\n".join(f"Paragraph {number} is about nothing of interest." for number in range(80))
HAY = f"{FILLER}\n\nHere is the **needle** of it.\n\n{FILLER}"
NEW_YORK = "America/New_York"
# The texts that are marked where words were found.
MARKED = "JSON.stringify([...(CSS.highlights.get('found') ?? [])].map(String))"

IS_MARK_IN_VIEW = """(() => {
  const [mark] = CSS.highlights.get("found");
  const { top, bottom } = mark.getBoundingClientRect();
  const log = document.querySelector(".log").getBoundingClientRect();
  return top >= log.top && bottom <= log.bottom;
})()"""


async def search(page: Page, query: str) -> None:
    """Type into the search."""
    await open_list(page)
    await page.get_by_label("Search conversations").fill(query)


async def make_hay(page: Page, server: ScriptedServer) -> None:
    """Make a long conversation with words in its middle, and show another one."""
    await (await begin(page, server, "Where is it?")).answer(HAY, size=10_000)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, "And then?")
    await (await server.next_stream()).answer(FILLER, size=10_000)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="New chat").click()


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
async def test_a_hit_is_shown_in_a_line_and_leads_to_its_place(
    browser: Browser, server: ScriptedServer, options: dict[str, object]
) -> None:
    context, page = await new_page(browser, **options, reduced_motion=MOVING)
    watch = PageWatch(page)
    await make_hay(page, server)
    await search(page, "Needle here")
    await expect(page.locator(".excerpt")).to_contain_text("Here is the needle of it.")
    await expect(page.locator(".excerpt mark")).to_have_text(["Here", "needle"])
    for _ in ("at first", "and again after the user has scrolled away"):
        await open_list(page)
        await page.get_by_label("Search conversations").fill("needle")
        # Until it is found, the list shows what was found before it, which leads to its own words.
        await expect(page.locator(".excerpt mark")).to_have_text(["needle"])
        await page.locator(".excerpt").click()
        await expect(page.locator(".prose strong")).to_be_in_viewport()
        await until_true(page, f"{MARKED} === '[\"needle\"]'")
        await page.locator(".log").press("End")
        await until_at_end(page.locator(".log"))
        await until_true(page, f"{MARKED} === '[]'")
    await watch.check(page, server.url)
    await context.close()


async def test_enter_opens_the_first_hit_and_arrow_keys_go_to_the_others(page: Page, server: ScriptedServer) -> None:
    await converse(page, server, ("Needle one?", "One."), ("Needle two?", "Two."))
    await page.get_by_role("button", name="New chat").click()
    await search(page, "needle")
    await page.get_by_label("Search conversations").press("Enter")
    await expect(last_answer(page).locator(".prose")).to_have_text("Two.")
    # Where conversations are read slowly, the list shows what was found only after the first of it is open.
    await expect(page.locator(".excerpt")).to_have_count(2)
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(last_answer(page).locator(".prose")).to_have_text("One.")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_label("Search conversations")).to_be_focused()


@pytest.mark.motion
async def test_a_conversation_that_is_shown_again_is_shown_from_its_end(page: Page, server: ScriptedServer) -> None:
    await make_hay(page, server)
    await search(page, "needle")
    await page.locator(".excerpt").click()
    await expect(page.locator(".prose strong")).to_be_in_viewport()
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".welcome")).to_be_visible()
    await page.go_back()
    await expect(page.locator(".answer")).to_have_count(2)
    await until_at_end(page.locator(".log"))
    await expect(page.locator(".prose strong")).not_to_be_in_viewport()
    assert await page.evaluate(MARKED) == "[]"


async def test_a_hit_in_another_branch_shows_that_branch(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "Which?")).answer("The first needle.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Answer again").click()
    await (await server.next_stream()).answer("Another.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await search(page, "needle")
    await page.locator(".excerpt").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("The first needle.")
    await expect(last_answer(page).locator(".branches")).to_contain_text("1/2")


async def test_a_hit_in_the_folded_part_of_a_question_unfolds_it(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, f"Where is it?\n\n{FILLER}\n\nThe needle.\n\n{FILLER}")).answer("There.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await expect(page.locator(".question p")).not_to_contain_text("needle")
    await search(page, "needle")
    await page.locator(".excerpt").click()
    await expect(page.locator(".question p")).to_contain_text("needle")
    await until_true(page, f"{MARKED} === '[\"needle\"]'")
    await until_true(page, IS_MARK_IN_VIEW)


async def test_while_searching_what_is_found_is_exported_and_whole_titles_are_told(
    page: Page, server: ScriptedServer, tmp_path: Path
) -> None:
    long = "How is the bread of all the other bakers made here?"
    await converse(page, server, (long, "With yeast."), ("What is paper?", "Pressed fibres."))
    await expect(entries(page).get_by_title(long)).to_be_visible()
    await search(page, "bread")
    await expect(entries(page)).to_have_count(1)
    file = await exported(page, tmp_path, page.get_by_role("button", name="Export found"), "found.json")
    assert [each["title"] for each in json.loads(file.read_text())["conversations"]] == [long]
    await page.get_by_label("Search conversations").press("Escape")
    await expect(page.get_by_role("button", name="Export all")).to_be_enabled()


async def test_words_in_a_title_alone_have_no_line(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "Which?")).answer("This one.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await open_list(page)
    await choose(page, "Which?", "Rename")
    await page.get_by_label("Title", exact=True).fill("Baking")
    await page.keyboard.press("Enter")
    await search(page, "this")
    await expect(page.locator(".excerpt")).to_have_text("This one.")
    await search(page, "baking")
    await expect(page.locator(".excerpt")).to_have_count(0)
    await expect(entries(page).locator("bdi")).to_have_text(["Baking"])


def milliseconds(*parts: int) -> float:
    """A time in New York, as the page stores it."""
    return datetime(*parts, tzinfo=ZoneInfo(NEW_YORK)).timestamp() * 1000  # type: ignore[arg-type,misc]


async def test_the_list_is_divided_by_days_and_follows_midnight(
    browser: Browser, server: ScriptedServer, tmp_path: Path
) -> None:
    times = {
        "Old": milliseconds(2025, 12, 31, 23),
        "Spring": milliseconds(2026, 4, 1),
        "Last week": milliseconds(2026, 11, 20),
        "Two days ago": milliseconds(2026, 11, 26, 1),
        "Yesterday evening": milliseconds(2026, 11, 27, 23),
        "Kept": milliseconds(2026, 1, 1),
    }
    conversations = [
        {
            "id": f"c{number}",
            "title": title,
            "createdAt": at,
            "updatedAt": at,
            "isPinned": title == "Kept",
            "messages": [],
        }
        for number, (title, at) in enumerate(times.items())
    ]
    archive = {"format": "quire.conversations", "version": 1, "conversations": conversations}
    (tmp_path / "archive.json").write_text(json.dumps(archive))
    context, page = await new_page(browser, timezone_id=NEW_YORK)
    watch = PageWatch(page)
    await page.clock.install(time=datetime(2026, 11, 28, 23, 50, tzinfo=ZoneInfo(NEW_YORK)))
    await (await begin(page, server, "Just now?")).answer("Yes.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await open_list(page)
    await import_file(page, tmp_path / "archive.json")
    names = ["Pinned", "Today", "Yesterday", "Previous 7 days", "November", "April", "December 2025"]
    await expect(page.locator(".day")).to_have_text(names)
    titles = ["Kept", "Just now?", "Yesterday evening", "Two days ago", "Last week", "Spring", "Old"]
    await expect(entries(page).locator("bdi")).to_have_text(titles)
    await page.clock.fast_forward("15:00")
    days = ["Pinned", "Yesterday", "Previous 7 days", "November", "April", "December 2025"]
    await expect(page.locator(".day")).to_have_text(days)
    await expect(page.locator("section").nth(2).locator("bdi")).to_have_text(["Yesterday evening", "Two days ago"])
    await watch.check(page, server.url)
    await context.close()
