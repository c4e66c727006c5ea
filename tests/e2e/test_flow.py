"""Credit, progress and shutdown on the page, against a scripted server."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.api.serving import until
from tests.cases import long
from tests.e2e.browsing import MOVING, ask, begin, last_answer, new_page
from tests.e2e.scripted import WINDOW, ScriptedServer
from tests.e2e.shots import Shots

pytestmark = pytest.mark.asyncio(loop_scope="session")

STOPPING = "The server is shutting down."


# --- Credit -----------------------------------------------------------------------------------------------------------


async def test_credit_is_sent_when_half_of_the_window_is_shown(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("almost ", tokens=WINDOW // 2 - 1)
    await expect(last_answer(page).locator(".tokens b")).to_have_text("127")
    await wait_for_paint_and_pong(page, server)
    assert stream.credits == []
    await stream.delta("half")
    await until(lambda: stream.credits)
    assert stream.credits == [WINDOW // 2 + WINDOW]


async def test_a_stopped_answer_gets_no_credit(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("a")
    await expect(last_answer(page).locator(".prose")).to_have_text("a")
    await page.keyboard.press("Escape")
    await stream.cancelled.wait()
    await stream.delta("much", tokens=200)
    await stream.done("cancelled")
    await wait_for_paint_and_pong(page, server)
    assert stream.credits == []


async def wait_for_paint_and_pong(page: Page, server: ScriptedServer) -> None:
    """Return once the page has painted twice and the server has read all that the page has sent."""
    await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await server.ping()


# --- The status of a question -----------------------------------------------------------------------------------------


async def test_a_waiting_answer_shows_its_status(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    standing = last_answer(page).locator(".standing")
    await expect(standing).to_have_count(0)
    await stream.send("progress", phase="queued", done=0, total=2048)
    await expect(standing).to_have_text("in the queue")
    places = {2: "in the queue after 2 others", 1: "in the queue after 1 other", 0: "next in the queue"}
    for ahead, words in places.items():
        await stream.send("progress", phase="queued", done=0, total=2048, ahead=ahead)
        await expect(standing).to_have_text(words)
    await stream.send("progress", phase="prefill", done=0, total=2048)
    await expect(standing).to_contain_text("processing the prompt")
    await expect(standing).to_contain_text("0 %")
    await stream.send("progress", phase="prefill", done=512, total=2048)
    await expect(standing).to_contain_text("25 %")
    bar = standing.get_by_role("progressbar", name="Prompt processed")
    assert await bar.evaluate("bar => bar.value / bar.max") == 0.25
    await stream.delta("Now")
    await expect(standing).to_have_count(0)
    await stream.send("progress", phase="preempted", done=0, total=2049)
    await expect(standing).to_contain_text("waiting for memory")
    await stream.delta(" then")
    await expect(last_answer(page).locator(".prose")).to_have_text("Now then")
    await expect(standing).to_contain_text("waiting for memory")
    await stream.send("progress", phase="decode", done=2049, total=2049)
    await expect(standing).to_have_count(0)
    await stream.send("paused")
    await expect(standing).to_contain_text("paused")
    await stream.send("resumed")
    await expect(standing).to_have_count(0)
    await stream.send("paused")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(standing).to_have_count(0)


async def test_the_status_of_an_answer_is_shown_but_not_announced(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.send("progress", phase="queued", done=0, total=9)
    await expect(last_answer(page).locator(".standing")).to_be_visible()
    live = "element => element.closest('[aria-live]').getAttribute('aria-live')"
    assert await last_answer(page).locator(".standing").evaluate(live) == "off"


# --- Shutdown of the server -------------------------------------------------------------------------------------------


async def test_a_draining_server_finishes_the_answer_and_the_page_reconnects(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await stream.drain()
    await expect(page.get_by_role("status")).to_contain_text(STOPPING)
    await stream.delta(" answer, then the rest.")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an answer, then the rest.")
    await stream.drop(1012)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await expect(page.get_by_text(STOPPING)).to_have_count(0)
    assert len(server.hellos) == 2
    await ask(page, "Still there?")
    await (await server.next_stream()).answer("Yes.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Yes.")


@pytest.mark.parametrize("is_sent_before", [False, True])
async def test_a_question_to_a_draining_server_waits_for_the_next_server(
    page: Page, server: ScriptedServer, is_sent_before: bool
) -> None:
    """The question may be sent before or after the page knows of the drain."""
    await (first := await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    if is_sent_before:
        await ask(page, "Two?")
        second = await server.next_stream()
        await first.drain()
        await second.error("draining", 503, "The server is shutting down.")
    else:
        await first.drain()
        await expect(page.get_by_role("status")).to_contain_text(STOPPING)
        await page.get_by_label("Your question").fill("Two?")
        await page.get_by_role("button", name="Send").click()
    await expect(last_answer(page).locator(".standing")).to_have_text("until the server is back")
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert server.streams.empty()
    await first.drop(1012)
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["One?", "First.", "Two?"]
    await stream.answer("Second.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")
    assert len(server.hellos) == 2


async def test_a_question_that_waits_for_the_next_server_can_be_stopped(page: Page, server: ScriptedServer) -> None:
    await (first := await begin(page, server)).answer("First.")
    await first.drain()
    await expect(page.get_by_role("status")).to_contain_text(STOPPING)
    await page.get_by_label("Your question").fill("Two?")
    await page.keyboard.press("Enter")
    await expect(last_answer(page)).to_have_attribute("data-state", "waiting")
    await page.keyboard.press("Escape")
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    await first.drop(1012)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    assert server.streams.empty()


async def test_a_page_opened_during_a_drain_waits_for_the_next_server(page: Page, server: ScriptedServer) -> None:
    server.health = {"status": "draining", "progress": 1.0}
    await page.goto(server.url)
    await expect(page.get_by_role("status")).to_contain_text(STOPPING)
    server.health = {"status": "ready", "progress": 1.0}
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")


async def test_an_answer_aborted_by_the_drain_timeout_shows_an_error(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await stream.drain()
    await stream.error("draining", 503, "The server has stopped before the answer was complete.")
    await expect(page.get_by_role("alert")).to_contain_text("The server has stopped before the answer was complete.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await stream.drop(1012)
    await page.get_by_role("button", name="Try again").click()
    await (await server.next_stream()).answer("A complete answer.")
    await expect(last_answer(page).locator(".prose")).to_have_text("A complete answer.")


@pytest.mark.parametrize(("code", "says"), [(4499, "The server disconnected"), (1012, "The server shut down")])
async def test_an_answer_interrupted_by_a_close_shows_the_cause_and_can_be_retried(
    page: Page, server: ScriptedServer, code: int, says: str
) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await stream.drop(code)
    await expect(last_answer(page)).to_have_attribute("data-state", "disconnected")
    await expect(page.get_by_role("alert")).to_contain_text(says)
    await page.get_by_role("button", name="Try again").click()
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["What is Quire?"]
    await stream.answer("A complete answer.")
    await expect(last_answer(page).locator(".prose")).to_have_text("A complete answer.")


@pytest.mark.parametrize("code", [4400, 4406])
async def test_a_page_of_another_protocol_does_not_reconnect(page: Page, server: ScriptedServer, code: int) -> None:
    await (await begin(page, server)).drop(code)
    await expect(page.get_by_text("This page is out of date.")).to_be_visible()
    await page.wait_for_timeout(600)  # longer than the delay before the first reconnect
    assert len(server.hellos) == 1


# --- Layout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("phone", "dark"), long("desktop", "dark"), long("phone", "light")]
)
async def test_every_state_fits_the_window(
    browser: Browser, server: ScriptedServer, shots: Shots, scheme: str, size: str
) -> None:
    viewport = {"width": 1280, "height": 800} if size == "desktop" else {"width": 360, "height": 740}
    context, page = await new_page(browser, viewport=viewport, color_scheme=scheme, reduced_motion=MOVING)
    standing = last_answer(page).locator(".standing")

    async def shoot(view: str) -> None:
        widest = "Math.max(document.documentElement.scrollWidth, document.querySelector('.log').scrollWidth)"
        assert await page.evaluate(widest) <= viewport["width"], f"{view} is wider than the window"
        if await standing.count():
            await expect(standing).to_be_visible()
        await shots.take(page, f"{view}-{size}-{scheme}")

    stream = await begin(page, server, "Would you summarise the complete manual?")
    await stream.send("progress", phase="queued", done=0, total=1900)
    await expect(standing).to_be_visible()
    await shoot("queued")
    await stream.send("progress", phase="prefill", done=1200, total=1900)
    await expect(standing).to_contain_text("63 %")
    await shoot("prefill")
    await stream.delta("The manual has **four parts**. The first one tells how to install Quire", tokens=17)
    await stream.send("progress", phase="preempted", done=0, total=1917)
    await expect(standing).to_contain_text("memory")
    await shoot("preempted")
    await stream.send("progress", phase="decode", done=1917, total=1917)
    await stream.send("paused")
    await expect(standing).to_contain_text("paused")
    await stream.drain()
    await expect(page.get_by_role("status")).to_contain_text(STOPPING)
    await shoot("draining")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_label("Your question").fill("And the second?")
    await page.keyboard.press("Enter")
    await expect(standing).to_have_text("until the server is back")
    await shoot("held")
    await stream.drop(1012)
    stream = await server.next_stream()
    await stream.delta("The second part")
    server.health = {"status": "loading", "progress": 0.1}
    await stream.drop(4499)
    await expect(page.get_by_role("alert")).to_contain_text("disconnected")
    await shoot("disconnected")
    await context.close()
