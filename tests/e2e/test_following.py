"""The log scrolls with the answer until the user scrolls away from the end, and again when they are back."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.browsing import MOVING, ask, begin, last_answer, new_page, until_at_end, until_true
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.motion]

# 1,500 words in 30 paragraphs: an answer several windows high.
LONG = "\n\n".join(" ".join(f"word{number}" for number in range(start, start + 50)) for start in range(1, 1501, 50))
SHORT = "Yes, that is so."

DISTANCE = "log => log.scrollHeight - log.scrollTop - log.clientHeight"

# The largest distance of the view from the end of the log, measured after each painted frame.
WATCH_THE_END = """() => {
  const log = document.querySelector(".log");
  window.farthest = 0;
  const look = () => {
    window.farthest = Math.max(window.farthest, log.scrollHeight - log.scrollTop - log.clientHeight);
  };
  const frame = () => requestAnimationFrame(() => (setTimeout(look), frame()));
  frame();
}"""

TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


async def stream_text(stream: Stream, text: str) -> None:
    """Stream a text in pieces of some words."""
    await stream.answer(text, size=300)


async def ask_and_finish(page: Page, server: ScriptedServer, question: str, answer: str) -> None:
    """Ask, and stream the complete answer."""
    ended = page.locator(".answer[data-state='done']")
    before = await ended.count()
    await ask(page, question)
    await stream_text(await server.next_stream(), answer)
    await expect(ended).to_have_count(before + 1)


async def distance(log: Locator) -> float:
    """How far the view is from the end of the log, in px."""
    far: float = await log.evaluate(DISTANCE)
    return far


async def open_long_answer(page: Page, server: ScriptedServer) -> Stream:
    """An unfinished answer of several windows, with its end in view."""
    stream = await begin(page, server)
    for paragraph in LONG.split("\n\n")[:20]:
        await stream.delta(paragraph + "\n\n")
    await expect(last_answer(page).locator("p")).to_have_count(20)
    await until_at_end(page.locator(".log"))
    return stream


async def test_the_end_stays_in_view_across_questions_after_long_answers(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await ask_and_finish(page, server, "Well?", "**So.**")
    await expect(page.locator(".answer strong")).to_have_text("So.")  # Markdown is there, which comes after the page
    await page.evaluate(WATCH_THE_END)
    for answer in (LONG, SHORT, LONG, SHORT, SHORT):
        await ask_and_finish(page, server, "And then?", answer)
    assert await page.evaluate("window.farthest") < 2


async def test_answers_out_of_view_are_not_laid_out_and_keep_their_height(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await ask_and_finish(page, server, "Well?", "**So.**")
    await expect(page.locator(".answer strong")).to_have_text("So.")  # Markdown is there, which comes after the page
    for answer in (LONG, LONG, SHORT):
        await ask_and_finish(page, server, "And then?", answer)
    await page.evaluate(TWO_FRAMES)
    first = page.locator(".answer").nth(1)
    await until_true(first, "answer => !answer.querySelector('p').checkVisibility({ contentVisibilityAuto: true })")
    height = "answer => answer.offsetHeight"
    assert await first.evaluate(height) == await page.locator(".answer").nth(2).evaluate(height)


async def wheel(page: Page, log: Locator, pixels: int) -> None:
    await log.hover()
    await page.mouse.wheel(0, pixels)


async def key(page: Page, log: Locator, pixels: int) -> None:
    await log.focus()
    await page.keyboard.press("PageUp" if pixels < 0 else "End")


async def finger(page: Page, log: Locator, pixels: int) -> None:
    session = await page.context.new_cdp_session(page)
    await session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for moved in range(0, abs(pixels), 50):
        y = 300 + (moved if pixels < 0 else -moved)
        kind = "touchMove" if moved else "touchStart"
        await session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": 400, "y": y}]})
    await session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    await session.detach()


async def search(page: Page, log: Locator, pixels: int) -> None:
    """Scroll as a find in the page, a screen reader or the scrollbar does: the only event is `scroll`."""
    await log.evaluate("(log, pixels) => log.scrollBy(0, pixels)", pixels)


@pytest.mark.parametrize("scroll", [wheel, key, finger, search])
async def test_the_view_does_not_move_after_the_user_scrolled_away_from_the_end(
    page: Page, server: ScriptedServer, scroll: Callable[[Page, Locator, int], Awaitable[None]]
) -> None:
    stream = await open_long_answer(page, server)
    log = page.locator(".log")
    back = page.get_by_role("button", name="Go to the end")
    await expect(back).to_have_count(0)
    await scroll(page, log, -400)
    await expect(back).to_be_visible()
    top = await settled_scroll_top(page, log)
    for paragraph in LONG.split("\n\n")[20:25]:
        await stream.delta(paragraph + "\n\n")
    await expect(last_answer(page).locator("p")).to_have_count(25)
    await page.evaluate(TWO_FRAMES)
    assert await log.evaluate("log => log.scrollTop") == top
    await scroll(page, log, 5000)
    await expect(back).to_have_count(0)
    await stream.delta("the end")
    await expect(last_answer(page).locator("p")).to_have_count(26)
    await until_at_end(log)


async def settled_scroll_top(page: Page, log: Locator) -> float:
    """The scroll position of the log when scrolling has ended."""
    top: float = -1
    while top != (top := await log.evaluate("log => log.scrollTop")):
        await page.evaluate(TWO_FRAMES)
    return top


async def test_scrolling_20_px_away_stops_following_a_growing_answer(page: Page, server: ScriptedServer) -> None:
    stream = await open_long_answer(page, server)
    log = page.locator(".log")
    await wheel(page, log, -20)
    await expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
    await stream.delta(LONG.split("\n\n")[20])
    await expect(last_answer(page).locator("p")).to_have_count(21)
    assert await distance(log) > 20


# An answer whose last part is replaced: it is lower for a moment, and something asks for the layout just then.
SHRINK_AND_GROW = """log => {
  const part = log.querySelector(".answer:last-of-type .prose").lastElementChild;
  const { height } = part.getBoundingClientRect();
  part.style.height = `${height - 40}px`;
  log.scrollTop;
  part.style.height = `${height}px`;
}"""


async def test_an_answer_that_is_lower_for_a_moment_is_followed(page: Page, server: ScriptedServer) -> None:
    stream = await open_long_answer(page, server)
    log = page.locator(".log")
    await log.evaluate(SHRINK_AND_GROW)
    await page.evaluate(TWO_FRAMES)
    assert await distance(log) < 2
    await stream.delta("And so on.")
    await expect(last_answer(page).locator("p")).to_have_count(21)
    await expect(last_answer(page).locator("p").last).to_have_text("And so on.")
    await until_at_end(log)


async def test_an_answer_is_followed_while_several_lines_are_typed(page: Page, server: ScriptedServer) -> None:
    await open_long_answer(page, server)
    field = page.get_by_label("Your question")
    await field.fill("One line,\nanother line,\nand a third one")
    await page.evaluate(TWO_FRAMES)
    await field.press("End")
    await field.press("!")
    await page.evaluate(TWO_FRAMES)
    assert await distance(page.locator(".log")) < 2


async def test_an_answer_that_has_become_shorter_leaves_no_room_below(page: Page, server: ScriptedServer) -> None:
    await open_long_answer(page, server)
    log = page.locator(".log")
    before = await log.evaluate("log => log.scrollHeight")
    await log.evaluate("log => log.querySelector('.prose').lastElementChild.remove()")
    await page.evaluate(TWO_FRAMES)
    below = "log => log.scrollHeight - log.querySelector('.column').offsetHeight"
    assert await log.evaluate("log => log.scrollHeight") < before
    assert await log.evaluate(below) < 2
    assert await distance(log) < 2


# A line more with each frame.
GROW_IN_EACH_FRAME = """() => {
  const prose = document.querySelector(".answer:last-of-type .prose");
  const grow = () => {
    prose.append(document.createElement("p"));
    prose.lastElementChild.textContent = "and so on";
    requestAnimationFrame(grow);
  };
  grow();
}"""


@pytest.mark.own_page
@pytest.mark.parametrize("name", ["ArrowUp", "PageUp", "Home"])
async def test_a_key_stops_following_an_answer_that_grows_in_each_frame(
    page: Page, server: ScriptedServer, name: str
) -> None:
    await open_long_answer(page, server)
    log = page.locator(".log")
    await log.focus()
    await page.evaluate(GROW_IN_EACH_FRAME)
    await page.keyboard.press(name)
    await expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
    await until_true(log, f"{DISTANCE} > 1000")


@pytest.mark.parametrize("way", ["button", "question"])
async def test_the_button_and_a_new_question_scroll_to_the_end(page: Page, server: ScriptedServer, way: str) -> None:
    stream = await open_long_answer(page, server)
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    log = page.locator(".log")
    await wheel(page, log, -2000)
    back = page.get_by_role("button", name="Go to the end")
    await expect(back).to_be_visible()
    if way == "button":
        await back.click()
        await until_at_end(log)
        await expect(page.get_by_label("Your question")).to_be_focused()
    await ask_and_finish(page, server, "And then?", LONG)
    await expect(back).to_have_count(0)
    await until_at_end(log)


@pytest.mark.parametrize(
    ("width", "height", "scale"), [(320, 568, 2), (640, 400, 2)], ids=["320x568", "200%-of-1280x800"]
)
async def test_the_welcome_view_starts_at_its_heading(
    browser: Browser, server: ScriptedServer, width: int, height: int, scale: int
) -> None:
    context, page = await new_page(
        browser, viewport={"width": width, "height": height}, device_scale_factor=scale, reduced_motion=MOVING
    )
    heading = page.get_by_role("heading", name="What would you like to know?")
    await page.goto(server.url)
    await expect(page.get_by_role("button", name="What is Quire?")).to_be_attached()
    await page.evaluate(TWO_FRAMES)
    await expect(heading).to_be_in_viewport(ratio=1)
    await ask_and_finish(page, server, "Long?", LONG)
    await wheel(page, page.locator(".log"), -200)
    await page.keyboard.press("Control+Shift+O")
    await expect(heading).to_be_in_viewport(ratio=1)
    await context.close()
