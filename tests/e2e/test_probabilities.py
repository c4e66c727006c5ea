"""Answers token by token: how probable each was, and what else the model might have written."""

import asyncio

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import PageWatch, ask, last_answer, new_page, stored_answer, until_last
from tests.e2e.scripted import ScriptedServer, Stream, scored
from tests.e2e.test_typing import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

COPIED = """() => {
  const range = document.createRange();
  range.selectNodeContents(document.querySelector(".token-text"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  return getSelection().toString();
}"""
# How a token is underlined, but for the colour.
UNDERLINE = """element => {
  const { textDecorationStyle, textDecorationThickness } = getComputedStyle(element);
  return `${textDecorationStyle} ${textDecorationThickness}`;
}"""


async def begin(page: Page, server: ScriptedServer) -> Stream:
    """Switch the probabilities on, and ask."""
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_label("Token probabilities").select_option("on")
    await page.keyboard.press("Escape")
    await ask(page, "Tell.")
    return await server.next_stream()


async def answer(page: Page, server: ScriptedServer) -> None:
    """Show an answer of tokens that were in doubt, more and less, to its end."""
    await answer_to(await begin(page, server))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(tokens(page)).to_have_count(6)


async def answer_to(stream: Stream) -> None:
    """Send an answer of tokens that were in doubt, more and less."""
    await stream.token("One", 0.99, Once=0.005)
    await stream.token(" **bold**", 0.6, more=0.3)
    await stream.token(" quire", 0.3, book=0.6)
    await stream.token("\n", 0.2)
    await stream.token("ends", 0.05)
    await stream.send("delta", i=0, n=stream.sent + 1, k=0, x="", lp=[scored(b"<end>", 0.9) | {"top_logprobs": []}])
    await stream.done()


def tokens(page: Page) -> Locator:
    """Those of the shown answer."""
    return last_answer(page).locator(".token-text > .token")


async def test_the_less_probable_a_token_the_stronger_its_underline(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    assert (stream.request["logprobs"], stream.request["top_logprobs"]) == (True, 5)
    await answer_to(stream)
    await expect(tokens(page)).to_have_text(["One", "**bold**", "quire", "", "ends", "<end>"])
    doubts = [await each.get_attribute("data-doubt") for each in await tokens(page).all()]
    assert doubts == [None, "1", "2", "3", "4", None]
    lines = [await tokens(page).nth(index).evaluate(UNDERLINE) for index in (1, 2, 3, 4)]
    assert len(set(lines)) == 4
    assert await violations(page) == []


async def test_what_is_copied_is_the_text_of_the_answer(page: Page, server: ScriptedServer) -> None:
    await answer(page, server)
    await expect(tokens(page)).to_have_count(6)
    assert await page.evaluate(COPIED) == "One **bold** quire\nends"
    assert (await stored_answer(page))["text"] == "One **bold** quire\nends"


async def test_a_token_under_the_pointer_shows_what_else_it_might_have_been(page: Page, server: ScriptedServer) -> None:
    await answer(page, server)
    tip = page.get_by_role("tooltip")
    await tokens(page).nth(2).hover()
    await expect(tip.locator("li")).to_have_text(["book60 %", "␣quire30 %"])
    await expect(tip.locator("[data-chosen]")).to_contain_text("quire")
    assert await violations(page) == []
    await tip.hover()
    await expect(tip).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(tip).to_have_count(0)
    await tokens(page).nth(0).hover()
    await expect(tip.locator("li")).to_have_text(["One99 %", "Once0.5 %"])
    await page.get_by_label("Your question").hover()
    await expect(tip).to_have_count(0)


async def test_the_arrow_keys_go_from_token_to_token_and_to_those_in_doubt(page: Page, server: ScriptedServer) -> None:
    await answer(page, server)
    text = page.get_by_role("group", name="The answer, token by token")
    await text.focus()
    for key, index in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("ArrowLeft", 0), ("ArrowRight", 1)):
        await page.keyboard.press(key)
        await expect(tokens(page).nth(index)).to_be_focused()
        await expect(page.get_by_role("tooltip")).to_be_visible()
    said = "Probabilities here: chosen: ␣**bold** 60 % more 30 %"
    await expect(tokens(page).nth(1)).to_have_accessible_description(said)
    await page.keyboard.press("Tab")
    await expect(last_answer(page).get_by_role("button", name="Show formatted")).to_be_focused()
    await expect(page.get_by_role("tooltip")).to_have_count(0)


async def test_a_finger_shows_what_a_pointer_does(browser: Browser, server: ScriptedServer) -> None:
    context, page = await new_page(browser, **PHONE)
    watch = PageWatch(page)
    await answer(page, server)
    tip = page.get_by_role("tooltip")
    await tokens(page).nth(4).tap()
    await expect(tip.locator("li")).to_have_text(["ends5.0 %"])
    box = await tip.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["viewport"]["width"]
    await page.locator(".question").tap()
    await expect(tip).to_have_count(0)
    await watch.check(page, server.url)
    await context.close()


async def test_an_answer_is_shown_as_tokens_while_the_setting_is_on_or_where_they_are_asked_for(
    page: Page, server: ScriptedServer
) -> None:
    await answer(page, server)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await last_answer(page).get_by_role("button", name="Show formatted").click()
    await expect(last_answer(page).locator(".prose strong")).to_have_text("bold")
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_role("button", name="Reset Token probabilities").click()
    await page.keyboard.press("Escape")
    await page.reload()
    await expect(last_answer(page).locator(".prose strong")).to_have_text("bold")
    await last_answer(page).get_by_role("button", name="Show tokens").click()
    await expect(tokens(page)).to_have_count(6)
    await ask(page, "And without?")
    stream = await server.next_stream()
    assert "logprobs" not in stream.request
    await stream.answer("Plain.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Plain.")
    await expect(last_answer(page).get_by_role("button", name="Show tokens")).to_have_count(0)


async def test_the_tokens_of_an_answer_go_on_after_a_reload(page: Page, server: ScriptedServer) -> None:
    server.keeps = True
    stream = await begin(page, server)
    await stream.token("Once", 0.5)
    await until_last(page, "messages", text="Once", state="streaming")
    await page.reload()
    rest = await server.next_stream()
    assert rest.frame["after"] == [1]
    await rest.token(" upon", 0.4)
    await rest.done()
    await expect(tokens(page)).to_have_text(["Once", "upon"])
    assert [each["p"] for each in (await stored_answer(page))["tokens"]] == [0.5, 0.4]


async def test_hostile_tokens_are_text(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.token("<img src=x onerror=alert(1)>", 0.2, **{"<b>other</b>": 0.7})
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await tokens(page).first.hover()
    await expect(page.get_by_role("tooltip").locator("li").first).to_have_text("<b>other</b>70 %")
    await expect(tokens(page).locator("*")).to_have_count(0)


async def test_a_long_answer_is_written_without_its_old_tokens_being_made_again(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server)
    for number in range(50):
        await stream.token(f" w{number}", 0.5)
    await expect(tokens(page)).to_have_count(50)
    await tokens(page).first.evaluate("element => { element.dataset.old = ''; }")
    for number in range(50):
        await stream.token(f" x{number}", 0.5)
        await asyncio.sleep(0)
    await stream.done()
    await expect(tokens(page)).to_have_count(100)
    await expect(page.locator(".token[data-old]")).to_have_count(1)
