"""The live view in the page: what it draws is what the messages say, and what is looked at tells its story."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from starlette.websockets import WebSocket

from tests.cases import long
from tests.e2e.axe import violations
from tests.e2e.browsing import PageWatch, ask, begin, last_answer, new_page, until_true
from tests.e2e.drawn_map import until_drawn
from tests.e2e.live_messages import CACHED, FENCED, FREE, PINNED, SHARED, USED, MadeUpEngine
from tests.e2e.scripted import ScriptedServer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.motion]

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# Whether a point of the first row is veiled, since its cell is not of the request that is lit.
IS_VEILED = """(marks, x) => {
  const copy = new OffscreenCanvas(marks.width, marks.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(marks, 0, 0);
  return copy.getImageData(x, 5, 1, 1).data[3] > 0;
}"""

# The time of the page stands still, so that what shines for a moment stays; a test moves it.
STILL_TIME = "window.time = 0; performance.now = () => window.time;"
# How opaque the most opaque of the marks is, 0 to 255.
MOST_OPAQUE = """(marks) => {
  const copy = new OffscreenCanvas(marks.width, marks.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(marks, 0, 0);
  const { data } = copy.getImageData(0, 0, marks.width, marks.height);
  let most = 0;
  for (let at = 3; at < data.length; at += 4) most = Math.max(most, data[at]);
  return most;
}"""

# How many children of an element are in each row.
IN_ROWS = """(element) => {
  const tops = Array.from(element.children, ({ offsetTop }) => offsetTop);
  return [...new Set(tops)].map((top) => tops.filter((other) => other === top).length).join(" ");
}"""


async def watch(page: Page, server: ScriptedServer) -> WebSocket:
    """Open the page with its live view, and return the view's connection."""
    await page.goto(f"{server.url}/#live")
    return await server.next_watcher()


def one_answer(request: str = "chatcmpl-1") -> MadeUpEngine:
    """An engine of 200 blocks, three of which hold the request 1, and two another one."""
    engine = MadeUpEngine(200)
    engine.set(USED, range(1, 4), owner=1)
    engine.add(1, id=request, prompt=40, computed=45, output=5, tables=[[0, 45, [1, 3]]])
    engine.set(USED, [10, 20], owner=2)
    engine.add(2, prompt=20, computed=20, output=0, tables=[[0, 20, [10, 1, 20, 1]]])
    return engine


async def expect_cells(page: Page, engine: MadeUpEngine) -> None:
    """The map has every block at its place, with the hue of its request: 1 and 2 have the hues 1 and 2."""
    await expect(page.locator(".live-legend li").first).to_contain_text(str(sum(s == FREE for s, _ in engine.cells)))
    looks = {CACHED: "live-faint", USED: "hue-{}", SHARED: "hue-{}"}
    await until_drawn(page, [looks.get(state, "").format(owner) for state, owner in engine.cells])


async def test_the_map_is_what_the_messages_say(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    await expect_cells(page, engine)
    engine.set(SHARED, range(1, 3), owner=1)
    engine.set(CACHED, range(100, 150))
    engine.set(PINNED, range(199, 201))
    engine.set(FENCED, [60])
    await socket.send_bytes(engine.difference())
    await expect_cells(page, engine)
    engine.set(USED, range(120, 140), owner=2)
    engine.set(FREE, [10, 60])
    await socket.send_bytes(engine.difference())
    await expect_cells(page, engine)


async def test_a_block_tells_its_story_to_the_mouse_and_to_the_keyboard(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().whole())
    marks = page.locator(".live-marks")
    await marks.hover(position={"x": 5, "y": 5})
    story = page.locator("#live-story")
    await expect(story).to_contain_text("Block 1 is used by request 1: tokens 1 to 16")
    await page.mouse.move(1, 1)
    await expect(story).to_contain_text("Point at a block")
    await marks.focus()
    await page.keyboard.press("Home")
    for _ in range(2):
        await page.keyboard.press("ArrowRight")
    await expect(story).to_contain_text("Block 3 is used by request 1: tokens 33 to 48")
    await page.keyboard.press("End")
    await expect(story).to_contain_text("Block 200 is free")


async def test_of_a_hundred_thousand_blocks_each_can_be_pointed_at(page: Page, server: ScriptedServer) -> None:
    """They are in bands of 16 cells, a pixel wide and two high."""
    socket = await watch(page, server)
    engine = MadeUpEngine(100_000)
    engine.set(USED, range(1, 401), owner=1)
    engine.add(1, prompt=6000, computed=6400, output=400, tables=[[0, 6400, [1, 400]]])
    await socket.send_bytes(engine.whole())
    story = page.locator("#live-story")
    await expect(story).to_contain_text("Too small for patterns: shared blocks are nearer to the colour of the text")
    marks = page.locator(".live-marks")
    await marks.hover(position={"x": 8, "y": 21})
    await expect(story).to_contain_text(re.compile(r"Block 1[67]\d is used by request 1: tokens 2[67]\d\d to"))
    await marks.hover(position={"x": 17 + 8, "y": 21})
    await expect(story).to_contain_text(re.compile(r"Block \d{4} is free"))


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
async def test_a_copied_block_is_circled_for_seconds(browser: Browser, server: ScriptedServer, motion: str) -> None:
    """The circle fades at its end, but for those who want no motion."""
    context, page = await new_page(browser, reduced_motion=motion)
    await page.add_init_script(STILL_TIME)
    socket = await watch(page, server)
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    marks = page.locator(".live-marks")
    await until_true(marks, f"marks => ({MOST_OPAQUE})(marks) === 0")
    engine.copy(3, 4)
    engine.set(USED, [4], owner=1)
    await socket.send_bytes(engine.difference())
    await until_true(marks, f"marks => ({MOST_OPAQUE})(marks) === 255")
    await page.evaluate("window.time = 1500")
    assert await marks.evaluate(MOST_OPAQUE) == 255
    await page.evaluate("window.time = 2375")
    if motion == "no-preference":
        await until_true(marks, f"marks => ({MOST_OPAQUE})(marks) < 200")
    assert await marks.evaluate(MOST_OPAQUE) > (100 if motion == "no-preference" else 254)
    await page.evaluate("window.time = 2600")
    await until_true(marks, f"marks => ({MOST_OPAQUE})(marks) === 0")
    await context.close()


async def test_a_request_in_the_queue_lights_its_blocks(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().whole())
    button = page.get_by_role("button", name="Request 2:")
    await button.click()
    await expect(button).to_have_attribute("aria-pressed", "true")
    await until_true(page.locator(".live-marks"), f"marks => ({IS_VEILED})(marks, 5)")
    await page.keyboard.press("Escape")
    await expect(button).to_have_attribute("aria-pressed", "false")
    await until_true(page.locator(".live-marks"), f"marks => !({IS_VEILED})(marks, 5)")
    await page.keyboard.press("Escape")
    await expect(page.locator(".live")).to_have_count(0)


async def test_an_answer_has_the_hue_of_its_request_and_lights_its_blocks(page: Page, server: ScriptedServer) -> None:
    server.keeps = True
    stream = await begin(page, server)
    await stream.delta("It is a server.")
    await expect(last_answer(page)).to_contain_text("It is a server.")
    await page.keyboard.press("Control+e")
    socket = await server.next_watcher()
    engine = one_answer(request="s" + stream.id)
    await socket.send_bytes(engine.whole())
    await expect(last_answer(page)).to_have_attribute("data-hue", "1")
    await last_answer(page).locator(".prose").click()
    button = page.get_by_role("button", name="Request 1:")
    await expect(button).to_have_attribute("aria-pressed", "true")
    await stream.done()
    # What it has left in the cache.
    engine.groups.pop(1)
    engine.set(CACHED, range(1, 4))
    await socket.send_bytes(engine.difference())
    await expect(button).to_have_count(0)
    await until_true(page.locator(".live-marks"), f"marks => ({IS_VEILED})(marks, 200) && !({IS_VEILED})(marks, 5)")
    await page.keyboard.press("Control+e")
    await expect(last_answer(page)).not_to_have_attribute("data-hue", "1")


async def test_answers_side_by_side_have_the_hue_of_their_request(page: Page, server: ScriptedServer) -> None:
    server.keeps = True
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    await page.get_by_label("Answers at once").fill("3")
    await page.keyboard.press("Escape")
    await ask(page, "Tell.")
    stream = await server.next_stream()
    for number in range(3):
        await stream.choice(number, "So it is.")
    answers = page.locator(".sides > .answer")
    await expect(answers.locator(".prose")).to_have_text(["So it is."] * 3)
    await page.keyboard.press("Control+e")
    engine = one_answer(request="s" + stream.id)
    await (await server.next_watcher()).send_bytes(engine.whole())
    for number in range(3):
        await expect(answers.nth(number)).to_have_attribute("data-hue", "1")
    await answers.nth(1).locator(".prose").click()
    await expect(page.get_by_role("button", name="Request 1:")).to_have_attribute("aria-pressed", "true")


async def test_a_request_is_in_the_lane_of_its_state(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    lane = page.locator(".live-lane").filter(has=page.get_by_role("button", name="Request 1:")).locator("h3")
    for state in ("paused", "swapped", "preempted", "waiting", "running"):
        engine.add(1, state)
        await socket.send_bytes(engine.difference())
        await expect(lane).to_contain_text("Waiting" if state == "preempted" else state.capitalize())


async def test_the_limit_of_a_request_is_that_of_all_its_answers(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = one_answer()
    engine.add(1, output=180, limit=100, tables=[[choice, 45, [1, 3]] for choice in range(4)])
    engine.set(SHARED, range(1, 4), owner=1)
    await socket.send_bytes(engine.whole())
    await expect(page.get_by_role("button", name="Request 1:")).to_contain_text("180 of at most 400 tokens written")
    await page.locator(".live-marks").hover(position={"x": 5, "y": 5})
    await expect(page.locator("#live-story")).to_contain_text("Block 1 is shared by the answers of request 1")


async def test_blocks_that_the_host_caches_are_not_called_swapped(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = one_answer()
    engine.host = {"total": 10, "used": 4, "owners": [[2, 3]]}
    await socket.send_bytes(engine.whole())
    strip = page.locator(".live-host")
    await expect(strip).to_contain_text("3 of 10 blocks swapped out, 1 cached or of others")
    engine.host = {"total": 10, "used": 1, "owners": []}
    await socket.send_bytes(engine.difference())
    await expect(strip).to_contain_text("0 of 10 blocks swapped out, 1 cached or of others")


async def test_the_view_costs_the_engine_nothing_when_it_is_closed(page: Page, server: ScriptedServer) -> None:
    server.key = "secret"
    await page.goto(server.url)
    await page.get_by_label("This server requires an API key.").fill("secret")
    await page.keyboard.press("Enter")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    button = page.get_by_role("button", name="The engine at work")
    await button.click()
    socket = await server.next_watcher()
    assert server.live_hellos == [{"t": "hello", "key": "secret"}]
    await socket.send_bytes(one_answer().whole())
    await expect(page.locator(".live-map")).to_be_visible()
    await button.click()
    await server.next_left()


@pytest.mark.own_page
async def test_a_message_that_does_not_follow_begins_the_picture_anew(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script("console.warn = () => {}")
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().difference())
    socket = await server.next_watcher()
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    await expect_cells(page, engine)


async def test_on_another_connection_requests_are_numbered_anew(page: Page, server: ScriptedServer) -> None:
    """The page shows what it had until then; that the request 1 was another's is forgotten."""
    socket = await watch(page, server)
    engine = one_answer()
    engine.add(1, own=False)
    await socket.send_bytes(engine.whole())
    legend = page.locator(".live-legend p")
    await expect(legend).to_contain_text("Each request has a colour; those of others are grey.")
    await socket.close(1012)
    # Half a second later it connects again, and says that.
    await expect(page.locator(".live-phase")).to_have_text(re.compile("The server cannot be reached|Connecting"))
    await expect(page.locator(".live-blocks")).to_have_css("opacity", "0.5")
    await expect(page.get_by_role("button", name="Request 1:")).to_contain_text("3 blocks")
    socket = await server.next_watcher()
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    await expect(page.locator(".live-blocks")).to_have_css("opacity", "1")
    await expect(legend).to_contain_text("Each request has a colour.")
    await expect_cells(page, engine)


async def test_a_view_that_the_server_refuses_is_told_from_a_server_that_is_away(
    browser: Browser, server: ScriptedServer
) -> None:
    context, page = await new_page(browser)
    server.shows_engine = False
    await page.goto(f"{server.url}/#live")
    phase = page.locator(".live-phase")
    await expect(phase).to_contain_text("The server answers, but shows no engine (--live-view off)")
    server.health = {"status": "loading", "progress": 0.5}
    await expect(phase).to_contain_text("The server is not ready; it is tried again.")
    server.shows_engine, server.health = True, {"status": "ready", "progress": 1}
    await (await server.next_watcher()).send_bytes(one_answer().whole())
    await expect(page.get_by_role("button", name="Request 1:")).to_be_visible()
    await context.close()


async def test_a_server_that_loads_its_model_says_so_until_it_shows_its_engine(
    browser: Browser, server: ScriptedServer
) -> None:
    """It accepts the connection, and sends nothing yet."""
    context, page = await new_page(browser)
    server.health = {"status": "loading", "progress": 0.5}
    socket = await watch(page, server)
    phase = page.locator(".live-phase")
    await expect(phase).to_have_text("The server is not ready; it is tried again.")
    server.health = {"status": "ready", "progress": 1}
    await socket.send_bytes(one_answer().whole())
    await expect(page.get_by_role("button", name="Request 1:")).to_be_visible()
    await expect(phase).to_have_text("")
    await context.close()


async def test_a_phone_asks_for_the_key_before_it_shows_the_view(browser: Browser, server: ScriptedServer) -> None:
    server.key = "secret"
    context, page = await new_page(browser, **PHONE)
    await page.goto(f"{server.url}/#live")
    await page.get_by_label("This server requires an API key.").fill("secret")
    await page.keyboard.press("Enter")
    await expect(page.locator(".live")).to_be_visible()
    socket = await server.next_watcher()
    while "key" not in server.live_hellos.pop(0):  # of before the server had asked for one
        socket = await server.next_watcher()
    await socket.send_bytes(one_answer().whole())
    await expect(page.locator(".live-map")).to_be_visible()
    await context.close()


async def test_the_slots_that_are_empty_are_among_the_figures(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().whole())
    figure = page.locator(".live-figures > div").filter(has_text="empty slots")
    await expect(figure).to_have_text(re.compile(r"empty slots\s*15\s*19 % of all"))
    explained = re.compile("Of the 80 slots in the 5 blocks of your requests, 15 have no token yet")
    await expect(figure).to_have_attribute("title", explained)


async def test_figures_and_legend_are_in_even_rows(page: Page, server: ScriptedServer) -> None:
    """No figure stands alone below four, with the list of conversations or without it."""
    await page.set_viewport_size({"width": 1280, "height": 800})
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().whole())
    figures, legend = page.locator(".live-figures"), page.locator(".live-legend ul")
    await until_true(figures, f"figures => ({IN_ROWS})(figures) === '6'")
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await until_true(figures, f"figures => ({IN_ROWS})(figures) === '3 3'")
    await page.set_viewport_size({"width": 1920, "height": 1080})
    await until_true(figures, f"figures => ({IN_ROWS})(figures) === '6'")
    await until_true(legend, f"legend => ({IN_ROWS})(legend) === '3 3 3'")


@pytest.mark.parametrize("width", [1280, 1440])
async def test_the_map_stays_where_it_is_when_a_figure_comes_or_goes(
    page: Page, server: ScriptedServer, width: int
) -> None:
    await page.set_viewport_size({"width": width, "height": 900})
    socket = await watch(page, server)
    engine = one_answer()
    figure = page.locator(".live-figures > div").filter(has_text="first token")
    tops = set()
    for p50 in (None, 0.9, None):
        times = p50 and {"p50": p50, "p95": 1.4, "p99": 2.0}
        engine.figures = {"first_token_ms": times, "between_tokens_ms": times}
        await socket.send_bytes(engine.whole() if not tops else engine.difference())
        told = r"0\.90 ms\s*95 % in 1\.4 ms" if p50 else r"none\s*of ended answers"
        await expect(figure).to_have_text(re.compile(f"first token\\s*{told}"))
        tops.add(await page.locator(".live-blocks").evaluate("blocks => blocks.getBoundingClientRect().top"))
    assert len(tops) == 1, tops


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("phone", "dark"), long("desktop", "dark"), long("phone", "light")]
)
async def test_the_view_is_accessible_and_fits_the_window(
    browser: Browser, server: ScriptedServer, scheme: str, size: str
) -> None:
    context, page = await new_page(
        browser, color_scheme=scheme, reduced_motion="reduce", **(PHONE if size == "phone" else {})
    )
    watched = PageWatch(page)
    socket = await watch(page, server)
    engine = one_answer()
    engine.step(12.5, (1, 0, 1, 0), (2, 20, 0, 0))
    engine.host = {"total": 10, "used": 4, "owners": [[2, 3]]}
    await socket.send_bytes(engine.whole())
    await expect(page.locator("#live-step")).to_contain_text("2 requests, 20 prompt tokens read")
    assert await violations(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await page.locator(".live").evaluate("live => live.scrollWidth <= live.clientWidth")
    await watched.check(page, server.url)
    await context.close()
