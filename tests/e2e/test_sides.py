"""Several answers side by side: choices of one request, of which one goes on."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import MOVING, PageWatch, ask, last_answer, new_page, until_last
from tests.e2e.scripted import ScriptedServer, Stream
from tests.e2e.test_typing import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEFT = "element => element.getBoundingClientRect().left"


async def begin(page: Page, server: ScriptedServer, count: int = 3) -> Stream:
    """Ask for so many answers at once."""
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_label("Answers at once").fill(str(count))
    await page.keyboard.press("Escape")
    await ask(page, "Tell.")
    return await server.next_stream()


def sides(page: Page) -> Locator:
    """The answers that stand side by side."""
    return page.locator(".sides > .answer")


async def answer(page: Page, stream: Stream) -> None:
    """All three answers, to their ends."""
    for number, text in enumerate(("First.", "Second.", "Third.")):
        await stream.choice(number, text, ends="stop")
    await stream.done_all(3)
    await expect(page.get_by_role("button", name="Go on with this one")).to_have_count(3)


async def test_answers_are_written_side_by_side_and_the_chosen_one_goes_on(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    assert stream.request["n"] == 3
    await expect(sides(page)).to_have_count(3)
    await stream.choice(2, "Third")
    await stream.choice(0, "First.", ends="stop")
    await stream.choice(1, "Second.")
    await expect(sides(page).locator(".prose")).to_have_text(["First.", "Second.", "Third"])
    for number, state in enumerate(("done", "streaming", "streaming")):
        await expect(sides(page).nth(number)).to_have_attribute("data-state", state)
    lefts = [await each.evaluate(LEFT) for each in await sides(page).all()]
    assert lefts == sorted(set(lefts))
    assert await violations(page) == []
    await stream.choice(2, ".", first=2, ends="stop")
    await stream.done_all(3)
    await page.get_by_role("button", name="Go on with this one").nth(1).click()
    await expect(sides(page)).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_be_focused()
    await ask(page, "And then?")
    again = await server.next_stream()
    assert [each["content"] for each in again.request["messages"]] == ["Tell.", "Second.", "And then?"]
    branches = page.locator(".answer").first.locator(".branches")
    await expect(branches).to_contain_text("2/3")
    await again.error("overloaded", 503, "No.")
    await branches.get_by_role("button", name="Next branch").click()
    await expect(last_answer(page).locator(".prose")).to_have_text("Third.")


async def test_a_stop_ends_all(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.choice(0, "First")
    await stream.choice(1, "Second")
    await expect(sides(page).nth(1)).to_contain_text("Second")
    await page.keyboard.press("Escape")
    for each in await sides(page).all():
        await expect(each).to_have_attribute("data-state", "stopped")
    await stream.cancelled.wait()


async def test_all_go_on_after_a_reload_and_stand_side_by_side(page: Page, server: ScriptedServer) -> None:
    server.keeps = True
    stream = await begin(page, server)
    await stream.choice(0, "Fir")
    await stream.choice(2, "Third.", ends="stop")
    await until_last(page, "messages", text="Third.", finish="stop", state="streaming")
    await page.reload()
    rest = await server.next_stream()
    assert (rest.frame["stream"], rest.frame["after"]) == ("s" + stream.id, [1, 0, 1])
    await rest.choice(1, "Second.", ends="stop")
    await rest.choice(0, "st.", first=2, ends="stop")
    await rest.done_all(3)
    await expect(sides(page).locator(".prose")).to_have_text(["First.", "Second.", "Third."])
    assert server.streams.empty()
    await page.reload()
    await expect(sides(page).locator(".prose")).to_have_text(["First.", "Second.", "Third."])


async def test_one_that_has_failed_says_so_beside_the_others(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.choice(0, "First.", ends="stop")
    await stream.choice(1, "Sec")
    await stream.error("engine_error", 500, "The engine has failed.")
    await expect(sides(page).get_by_role("alert")).to_have_count(2)
    await expect(sides(page).first.get_by_role("alert")).to_have_count(0)
    await expect(sides(page).nth(1).get_by_role("alert")).to_contain_text("The engine has failed.")
    await expect(sides(page).last.get_by_role("alert").get_by_role("button")).to_have_text(["Try again"])
    await expect(page.get_by_label("Your question")).to_have_value("")


async def test_a_request_that_is_refused_is_one_failure(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.error("overloaded", 503, "The queue is full.")
    await expect(page.get_by_role("alert")).to_have_count(1)
    await expect(page.locator(".answer")).to_have_count(1)
    await expect(page.get_by_label("Your question")).to_have_value("Tell.")


async def test_answers_that_are_the_same_say_why(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, 2)
    for number in range(2):
        await stream.choice(number, "The same.", ends="stop")
    await expect(page.get_by_text("These answers are the same.")).to_have_count(0)
    await stream.done_all(2)
    await expect(page.get_by_text("The higher the temperature, the more answers differ.")).to_be_visible()


async def test_another_tab_shows_them_and_the_choice(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await answer(page, stream)
    await until_last(page, "messages", state="done")
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(sides(other)).to_have_count(3)
    await page.get_by_role("button", name="Go on with this one").last.click()
    await expect(sides(other)).to_have_count(0)
    await other.close()


async def test_one_of_them_is_deleted_and_put_back(page: Page, server: ScriptedServer) -> None:
    await answer(page, await begin(page, server))
    await sides(page).first.get_by_role("button", name="Delete this answer").click()
    await expect(sides(page).locator(".prose")).to_have_text(["Second.", "Third."])
    await page.get_by_role("button", name="Undo").click()
    await expect(sides(page).locator(".prose")).to_have_text(["First.", "Second.", "Third."])


async def test_on_a_phone_they_are_moved_sideways(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser, **PHONE, reduced_motion=MOVING)
    watch = PageWatch(page)
    await answer(page, await begin(page, server))
    await expect(sides(page).last).not_to_be_in_viewport(ratio=0.5)
    assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    await page.locator(".sides").evaluate("element => element.scrollTo(element.scrollWidth, 0)")
    await expect(sides(page).last).to_be_in_viewport(ratio=0.9)
    await sides(page).last.get_by_role("button", name="Go on with this one").tap()
    await expect(last_answer(page).locator(".prose")).to_have_text("Third.")
    await watch.check(page, server.url)
    await context.close()
