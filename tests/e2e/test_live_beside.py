"""The live view beside its map: a block leads to its message, tables and figures say what they are of."""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.e2e.browsing import ask
from tests.e2e.busy_engine import busy_engine
from tests.e2e.drawn_map import drawn
from tests.e2e.live_messages import CACHED, FREE, NAMES, USED, MadeUpEngine
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_live import expect_cells, one_answer, watch

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.motion]

LONG = "\n\n".join(f"Paragraph {number} of an answer that fills the window." for number in range(60))


def answer(page: Page, number: int) -> Locator:
    """An answer of the conversation, from 0."""
    return page.locator(".answer[data-message]").nth(number)


async def test_a_click_on_a_block_leads_to_its_message(page: Page, server: ScriptedServer) -> None:
    """The first answer has gone out of sight; a click on a block of it brings it back, Enter goes to the second one."""
    server.keeps = True
    socket = await watch(page, server)
    engine = one_answer()
    for number, (question, text) in enumerate((("First?", "It is the first answer."), ("Second?", LONG)), 1):
        await ask(page, question)
        stream = await server.next_stream()
        await stream.delta(text)
        engine.add(number, id="s" + stream.id)
        await socket.send_bytes(engine.whole())
        await expect(answer(page, number - 1)).to_have_attribute("data-hue", str(number))
        await stream.done()
        await expect(answer(page, number - 1)).to_have_attribute("data-state", "done")
    await expect(answer(page, 0)).not_to_be_in_viewport()

    marks = page.locator(".live-marks")
    await marks.click(position={"x": 5, "y": 5})
    await expect(page.locator("#live-story")).to_contain_text("Block 1 is used by request 1")
    await expect(answer(page, 0)).to_be_in_viewport(ratio=0.9)
    await expect(page.get_by_role("button", name="Request 1:")).to_have_attribute("aria-pressed", "true")

    await page.keyboard.press("Home")
    for _ in range(9):
        await page.keyboard.press("ArrowRight")
    await expect(page.locator("#live-story")).to_contain_text("Block 10 is used by request 2")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Request 2:")).to_have_attribute("aria-pressed", "true")
    await expect(answer(page, 0)).not_to_be_in_viewport()
    await expect(answer(page, 1)).to_be_in_viewport()


async def expect_spoken(page: Page, engine: MadeUpEngine) -> None:
    """The tables for screen readers have the count of every state, and every request, of the engine."""
    counts = [sum(state == number for state, _ in engine.cells) for number in range(len(NAMES))]
    blocks = page.get_by_role("table", name="Blocks by state").get_by_role("row")
    await expect(blocks).to_have_text([f"{name}{count}" for name, count in zip(NAMES, counts, strict=True)])
    requests = page.get_by_role("table", name="Requests").get_by_role("row")
    groups = [f"{group['n']}{group['state']}{group['blocks']}" for group in engine.groups.values()]
    await expect(requests).to_have_text(["NumberStateBlocks", *groups])


async def test_the_tables_for_screen_readers_say_what_the_map_draws(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = one_answer()
    await socket.send_bytes(engine.whole())
    await expect_cells(page, engine)
    await expect_spoken(page, engine)
    engine.set(USED, range(30, 50), owner=2)
    engine.set(CACHED, range(100, 150))
    engine.set(FREE, [1])
    engine.add(1, "paused", tables=[[0, 29, [2, 2]]])
    engine.add(2, tables=[[0, 350, [10, 1, 20, 1, 30, 20]]])
    await socket.send_bytes(engine.difference())
    await expect_cells(page, engine)
    await expect_spoken(page, engine)
    # The map has as many cells of each kind as the tables say.
    cells = await drawn(page, engine.num_blocks)
    assert (cells.count("live-faint"), cells.count("hue-1"), cells.count("hue-2")) == (50, 2, 22)


async def test_the_tables_have_every_state_of_blocks_and_requests(page: Page, server: ScriptedServer) -> None:
    socket = await watch(page, server)
    engine = busy_engine()
    await socket.send_bytes(engine.whole())
    await expect_spoken(page, engine)
    assert {state for state, _ in engine.cells} == {*range(len(NAMES))}


async def test_the_figures_say_of_what_time_they_are_and_the_legend_has_the_words_of_the_field(
    page: Page, server: ScriptedServer
) -> None:
    socket = await watch(page, server)
    await socket.send_bytes(one_answer().whole())
    await expect(page.get_by_title("for all requests, over the last five seconds")).to_contain_text("over 5 s")
    for words in ("(TTFT) in the server, of the answers that ended in the last minute", "(ITL) in the last minute"):
        await expect(page.get_by_title(words)).to_be_visible()
    await expect(page.locator(".live-legend")).to_contain_text("draft token accepted")


async def test_it_is_not_behind_the_list_of_a_narrow_window(page: Page, server: ScriptedServer) -> None:
    await page.set_viewport_size({"width": 720, "height": 450})
    await page.goto(server.url)
    await page.get_by_role("button", name="Conversations", exact=True).click()
    await expect(page.locator(".sidebar")).to_be_visible()
    await page.keyboard.press("Control+e")
    await expect(page.locator(".live")).to_be_visible()
    await expect(page.locator(".sidebar")).to_have_count(0)
