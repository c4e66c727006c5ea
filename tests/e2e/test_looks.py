"""What is seen of the page and no other test asks about: measures, fonts and colours."""

import base64
import itertools

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.browsing import begin, last_answer, new_page, until_complete
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_typing import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A phone shows the page's colours, light or dark, in its own bars, too.
BARS = """Array.from(document.querySelectorAll("meta[name=theme-color]"), ({ content }) => content)"""

# How many pixels of a picture are blue, which no colour of the page is.
BLUE = """async (png) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
  return data.reduce((sum, red, at) => sum + (at % 4 === 0 && data[at + 2] > red + 60), 0);
}"""


async def num_blue(page: Page, locator: Locator) -> int:
    """How many pixels of an element are blue."""
    png = base64.b64encode(await locator.screenshot()).decode()
    number: int = await page.evaluate(BLUE, png)
    return number


async def box(locator: Locator) -> tuple[float, float, float, float]:
    """Left, top, width and height of an element."""
    found = await locator.bounding_box()
    assert found
    return found["x"], found["y"], found["width"], found["height"]


async def style(locator: Locator, name: str) -> str:
    """A computed style of an element."""
    value: str = await locator.evaluate("(element, name) => getComputedStyle(element)[name]", name)
    return value


async def test_the_buttons_of_an_editor_are_below_its_field_without_a_bubble(
    page: Page, server: ScriptedServer
) -> None:
    await (await begin(page, server)).answer("It is a server.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.locator(".question").hover()
    await page.get_by_role("button", name="Edit question").click()
    await until_complete(page)  # nothing comes any more that moves what is measured
    row = page.locator(".editor-row")
    left, top, width, height = await box(page.get_by_label("Edit your question"))
    assert (await box(row))[::2] == (left, width)
    assert (await box(row))[1] >= top + height
    assert await style(row, "borderTopWidth") == "0px"
    assert await style(row, "backgroundColor") == "rgba(0, 0, 0, 0)"


async def test_what_the_browser_draws_has_the_fonts_and_colours_of_the_page(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    font = await style(page.locator("body"), "fontFamily")
    assert {await style(select, "fontFamily") for select in await dialog.locator("select").all()} == {font}
    checkbox = dialog.get_by_role("checkbox").first
    await checkbox.check()
    assert await num_blue(page, checkbox) == 0
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await page.get_by_label("Search conversations").fill("text")
    assert await num_blue(page, page.get_by_label("Search conversations")) == 0


async def test_the_scrollbar_of_a_window_is_inside_its_round_corners(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    overflow = "(element) => element.scrollHeight - element.clientHeight"
    assert await page.get_by_role("dialog").evaluate(overflow) == 0
    assert await page.locator(".window-body").evaluate(overflow) > 0
    await page.get_by_label("Stop").scroll_into_view_if_needed()
    await expect(page.get_by_label("Stop")).to_be_in_viewport()
    await expect(page.get_by_role("button", name="Close")).to_be_in_viewport()


async def test_the_buttons_of_a_failure_are_beside_its_words(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.error("overloaded", 503, "The queue is full; try again in a moment.")
    await expect(page.get_by_label("Your question")).to_have_value("What is Quire?")
    await until_complete(page)
    words = last_answer(page).locator(".failure > [dir]")
    _, top, _, height = await box(words)
    button = await box(last_answer(page).get_by_role("button", name="Try again"))
    assert button[1] <= top + height / 2 <= button[1] + button[3]


@pytest.mark.parametrize("width", [390, 320])
async def test_the_buttons_of_a_failure_are_one_row_on_a_phone(
    browser: Browser, server: ScriptedServer, width: int
) -> None:
    context, page = await new_page(browser, **PHONE | {"viewport": {"width": width, "height": 700}})
    stream = await begin(page, server)
    await stream.delta("It is a")
    await stream.error("engine_error", 500, "The engine failed; the server has restarted it.")
    buttons = last_answer(page).locator(".failure button")
    await expect(buttons).to_have_text(["Continue", "Try again"])
    tops = [(await box(button))[1] for button in await buttons.all()]
    _, top, _, height = await box(last_answer(page).locator(".failure > [dir]"))
    assert tops[0] == tops[1] >= top + height
    await context.close()


async def test_the_keys_below_the_field_have_the_same_distances(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".keys > span")).to_have_count(4)
    keys = await page.locator(".keys > span").all()
    boxes = [(await box(each), await box(each.locator("kbd, button").first)) for each in keys]
    gaps = [round(inner[0] - (left + width), 1) for ((left, _, width, _), _), (_, inner) in itertools.pairwise(boxes)]
    assert len(gaps) == 3
    assert len(set(gaps)) == 1


async def test_the_keys_are_broken_between_them_alone_and_no_sign_is_left_at_the_end_of_a_line(
    page: Page, server: ScriptedServer
) -> None:
    await page.set_viewport_size({"width": 660, "height": 800})
    await page.goto(server.url)
    keys = page.locator(".keys > span")
    await expect(keys).to_have_count(4)
    lowest, *_ = wide = [(await box(each))[3] for each in await keys.all()]
    await page.locator(".keys").evaluate("keys => (keys.style.width = '200px')")
    boxes = [await box(each) for each in await keys.all()]
    assert boxes[-1][1] >= boxes[0][1] + lowest
    assert [height for *_, height in boxes] == wide
    for each in await keys.all():
        assert await each.evaluate("key => getComputedStyle(key, '::before').content") == "none"


async def test_the_field_has_one_line_after_a_reload_that_opens_the_list(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "How is bread made?")).answer("With yeast.")
    await until_complete(page)
    field = page.get_by_label("Your question")
    height = (await box(field))[3]
    await page.reload()
    await expect(page.locator("#sidebar")).to_be_visible()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    assert (await box(field))[3] == height


@pytest.mark.parametrize("width", [1280, 640])
async def test_the_suggestions_of_the_welcome_are_of_one_height(
    browser: Browser, server: ScriptedServer, width: int
) -> None:
    server.model = "smollm2"
    context, page = await new_page(browser, viewport={"width": width, "height": 800})
    await page.goto(server.url)
    await expect(page.locator(".suggestions button")).to_have_count(4)
    assert len({(await box(card))[3] for card in await page.locator(".suggestions button").all()}) == 1
    await context.close()


@pytest.mark.parametrize("width", [390, 320])
async def test_the_bar_of_a_phone_has_room_for_every_button(
    browser: Browser, server: ScriptedServer, width: int
) -> None:
    server.model = "a-model-with-a-long-name-1.7B-instruct"
    context, page = await new_page(browser, **PHONE | {"viewport": {"width": width, "height": 700}})
    await page.goto(server.url)
    await expect(page.locator(".suggestions")).to_be_visible()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    parts = [await box(part) for part in await page.locator(":is(.bar button, .bar h1 > svg):visible").all()]
    assert len(parts) == (7 if width > 360 else 6)
    for (left, _, width_before, _), (after, *_) in itertools.pairwise(sorted(parts)):
        assert left + width_before <= after
    assert max(left + own for left, _, own, _ in parts) <= width
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await context.close()


@pytest.mark.own_page
async def test_the_theme_is_turned_by_its_button_and_the_settings_agree(page: Page, server: ScriptedServer) -> None:
    await page.emulate_media(color_scheme="light")
    await page.goto(server.url)
    body = page.locator("body")
    button = page.get_by_role("button", name="Theme:")
    await button.click()
    await expect(button).to_have_accessible_name("Theme: dark")
    assert await style(body, "backgroundColor") == "rgb(24, 22, 19)"
    assert set(await page.evaluate(BARS)) == {"#181613"}
    await page.reload()
    await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert await style(body, "backgroundColor") == "rgb(24, 22, 19)"
    await page.get_by_role("button", name="Settings", exact=True).click()
    await expect(page.get_by_label("Theme of the page")).to_have_value("dark")
    await page.keyboard.press("Escape")
    for name, bars in (("light", ["#faf7f1", "#faf7f1"]), ("as the system", ["#faf7f1", "#181613"])):
        await button.click()
        await expect(button).to_have_accessible_name(f"Theme: {name}")
        assert await style(body, "backgroundColor") == "rgb(250, 247, 241)"
        assert await page.evaluate(BARS) == bars
    await page.emulate_media(color_scheme="dark")
    await button.click()
    await expect(button).to_have_accessible_name("Theme: light")


@pytest.mark.own_page
async def test_the_list_is_not_printed_and_signs_stay_where_the_system_chooses_colours(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server)
    await stream.delta("It is")
    await page.keyboard.press("Control+b")
    await page.emulate_media(forced_colors="active")
    await expect(page.locator(".conversation")).to_have_css("outline-style", "solid")
    for sign in (".dot", ".writing"):
        await expect(page.locator(sign)).to_have_css("forced-color-adjust", "none")
    await page.emulate_media(forced_colors="none", media="print")
    await expect(page.locator(".sidebar")).to_be_hidden()
    assert (await box(page.locator(".content")))[2] == await page.evaluate("innerWidth")
    await page.emulate_media(media="screen")
    await expect(page.locator(".sidebar")).to_be_visible()
