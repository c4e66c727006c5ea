"""Previews of code blocks: which have one, what it shows, and who has the focus."""

import pytest
from playwright.async_api import FrameLocator, Locator, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import asking, begin, last_answer, until_true
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENT = """<!doctype html>
<h1>Counter</h1>
<button onclick="this.textContent = Number(this.textContent) + 1">0</button>
<script>document.querySelector("h1").append(" ready")</script>"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20" height="120"><circle cx="20" cy="10" r="9"/></svg>'
# Takes the focus each time that it has lost it, three times.
TAKING = """<input id="taken"><p></p><script>
let numLosses = 0;
addEventListener("blur", () => {
  document.querySelector("p").textContent = `lost it ${++numLosses} times`;
  if (numLosses < 3) setTimeout(() => taken.focus(), 20);
});
setTimeout(() => taken.focus(), 20);
</script>"""


def fenced(text: str, language: str = "html") -> str:
    """A text as a code block."""
    return f"```{language}\n{text}\n```\n"


async def answered(page: Page, server: ScriptedServer, text: str) -> Locator:
    """Get this answer; return it."""
    stream: Stream = await begin(page, server)
    await stream.answer(text, size=len(text))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    return last_answer(page)


async def previewed(page: Page, server: ScriptedServer, text: str) -> FrameLocator:
    """Get a code block, and open its preview."""
    answer = await answered(page, server, fenced(text))
    await answer.get_by_role("button", name="Preview").click()
    return answer.frame_locator(".preview iframe")


async def test_a_document_is_shown_when_it_is_asked_for_and_its_code_again(page: Page, server: ScriptedServer) -> None:
    with asking(page) as asked:
        answer = await answered(page, server, fenced(DOCUMENT))
    assert not [url for url in asked if url.endswith("/preview")]
    wrap = answer.get_by_role("button", name="Wrap long lines")
    await answer.get_by_role("button", name="Preview").click()
    await expect(answer.locator("pre")).to_be_hidden()
    await expect(wrap).to_be_disabled()
    shown = answer.frame_locator(".preview iframe")
    await expect(shown.get_by_role("heading")).to_have_text("Counter ready")
    await shown.get_by_role("button").click()
    await expect(shown.get_by_role("button")).to_have_text("1")
    assert await violations(page) == []
    await answer.get_by_role("button", name="Code", exact=True).click()
    await expect(answer.locator("iframe")).to_have_count(0)
    await expect(answer.locator("pre")).to_be_visible()
    await expect(wrap).to_be_enabled()
    await expect(answer.get_by_role("button", name="Preview")).to_be_focused()
    await page.reload()
    await expect(last_answer(page).get_by_role("button", name="Preview")).to_be_visible()


@pytest.mark.parametrize(
    ("block", "has_preview"),
    [(fenced(SVG, "svg"), True), (fenced(SVG, ""), True), (fenced(f'<?xml version="1.0"?>\n{SVG}', "xml"), True),
     (fenced("<!DOCTYPE html>\n<p>a", "text"), True), (fenced("<p>a", "HTML"), True), (fenced("<p>a", "xml"), False),
     (fenced("print('<html>')", "python"), False), (fenced("<svgs>", ""), False)],
)  # fmt: skip
async def test_html_and_svg_have_a_preview(page: Page, server: ScriptedServer, block: str, has_preview: bool) -> None:
    answer = await answered(page, server, block)
    await expect(answer.locator(".code-bar")).to_be_visible()
    await expect(answer.get_by_role("button", name="Preview")).to_have_count(int(has_preview))


async def test_a_block_has_a_preview_when_it_is_closed(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("```html\n<p>one")
    await expect(last_answer(page).locator(".code-bar")).to_be_visible()
    await stream.delta("</p>\n")
    await expect(last_answer(page).get_by_role("button", name="Preview")).to_have_count(0)
    await stream.delta("```\n\nThat is\n\n")
    switch = last_answer(page).get_by_role("button", name="Preview")
    await switch.click()
    shown = last_answer(page).frame_locator(".preview iframe").locator("p")
    await expect(shown).to_have_text("one")
    await stream.delta("all.\n\nThe end.")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(shown).to_have_text("one")


@pytest.mark.parametrize(
    ("height", "least", "most"), [(150, 150, 152), (1, 64, 64), (100_000, 640, 640)], ids=["small", "least", "most"]
)
async def test_a_preview_is_as_high_as_its_document_within_bounds(
    page: Page, server: ScriptedServer, height: int, least: int, most: int
) -> None:
    style = f"<style>body {{ margin: 0 }} p {{ margin: 0; height: {height}px }}</style><p></p>"
    await previewed(page, server, style)
    frame = page.locator(".preview iframe")
    await until_true(frame, f"frame => frame.clientHeight >= {least} && frame.clientHeight <= {most}")


@pytest.mark.own_page
async def test_a_frame_that_cannot_be_loaded_leaves_the_code(page: Page, server: ScriptedServer) -> None:
    await page.route("**/preview", lambda route: route.abort())
    answer = await answered(page, server, fenced("<p>a"))
    await answer.get_by_role("button", name="Preview").click()
    await expect(page.locator(".toast")).to_contain_text("could not be loaded")
    await expect(answer.locator("iframe")).to_have_count(0)
    await expect(answer.locator("pre")).to_be_visible()


async def test_a_preview_does_not_take_the_focus_of_a_field_and_gets_it_by_a_click(
    page: Page, server: ScriptedServer
) -> None:
    shown = await previewed(page, server, TAKING)
    field = page.get_by_label("Your question")
    await field.focus()
    await expect(shown.get_by_text("lost it 3 times")).to_be_visible()
    await expect(field).to_be_focused()
    await page.keyboard.type("What I type is mine.")
    await expect(field).to_have_value("What I type is mine.")
    assert await violations(page) == []
    await page.get_by_role("button", name="Use the preview").click()
    await shown.locator("input").click()
    await page.keyboard.type("And this is for it.")
    await expect(shown.locator("input")).to_have_value("And this is for it.")
    await expect(field).to_have_value("What I type is mine.")


async def test_a_preview_gets_the_focus_by_the_tab_key(page: Page, server: ScriptedServer) -> None:
    shown = await previewed(page, server, "<input id='first'>")
    await expect(shown.locator("input")).to_be_visible()  # an empty frame has nothing to give the focus to
    await page.get_by_label("Your question").focus()
    await page.get_by_role("button", name="Copy code").focus()
    await page.keyboard.press("Tab")
    await expect(shown.locator("input")).to_be_focused()
    await page.keyboard.type("By keyboard.")
    await expect(shown.locator("input")).to_have_value("By keyboard.")
