"""The tour of the live view: on the embedded model, and with the recording of what a server cannot show."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from websockets.asyncio.client import connect

from app.checkpoint.hub import smollm2
from app.client.client import connect as connect_client
from app.client.live_picture import LivePicture
from app.contract.live_state import LIVE_PROTOCOL
from tests.cases import long
from tests.e2e.axe import violations
from tests.e2e.browsing import MOVING, TIMEOUT_MS, PageWatch, ask, last_answer, new_page, until_true
from tests.e2e.live_messages import MadeUpEngine
from tests.e2e.real_server import KEY, RunningServer, running, unlock
from tests.e2e.scripted import ScriptedServer
from tests.e2e.shots import Shots
from tools.live_recording import events_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.motion]

FULL_POOL = "A full pool"
INSTRUCTION = "You explain how servers of language models work, in plain words and with examples. " * 4
OTHERS = ("What is a token?", "What is a block?", "What is a batch?", "What is a cache?", "What is a prompt?")
QUESTION = "Why is the sky blue?"
# From now on the time of the page stands still where `goTo` has put it, in milliseconds from now.
HOLD_TIME = """() => {
  const { setTimeout: set, clearTimeout: clear } = window;
  const begun = performance.now();
  const timers = new Set();
  let time = begun;
  performance.now = () => time;
  window.setTimeout = (run, ms = 0, ...given) => {
    if (ms <= 0) return set(run, ms, ...given);
    const timer = { due: time + ms, run: () => run(...given) };
    timers.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => timers.delete(timer) || clear(timer);
  const nextBefore = (end) => [...timers].filter(({ due }) => due <= end).sort((a, b) => a.due - b.due)[0];
  window.goTo = async (ms) => {
    for (let next; (next = nextBefore(begun + ms)); await new Promise((resolve) => set(resolve))) {
      timers.delete(next);
      time = Math.max(time, next.due);
      next.run();
    }
    time = begun + ms;
  };
}"""
# When some requests of the recording are swapped out and some preempted, and when it is over.
FULL_MS, OVER_MS = 3500, 20_000


async def begin(page: Page) -> Locator:
    """Begin the tour in the live view that is shown."""
    await page.get_by_role("button", name="Tour", exact=True).click()
    return page.get_by_role("region", name="Tour")


async def go_to(tour: Locator, title: str) -> None:
    """Go on to a stop."""
    heading = tour.get_by_role("heading")
    while title not in (shown := await heading.inner_text()):
        await tour.get_by_role("button", name="Next").click()
        await expect(heading).not_to_have_text(shown)


async def watch_for(page: Page, name: str, condition: str) -> None:
    """Let the page set the variable `name` when a condition is true, and be it for one picture."""
    await page.evaluate(f"""() => {{
      window.{name} = false;
      const look = () => {{ window.{name} ||= {condition}; }};
      new MutationObserver(look).observe(document.body, {{ subtree: true, childList: true, characterData: true }});
    }}""")


async def expect_over(page: Page, tour: Locator) -> None:
    """Wait until a stop has been shown to its end, and nothing is left of its requests."""
    await expect(tour.get_by_role("button", name="Show it again")).to_be_visible()
    await expect(page.locator(".live-lane[data-empty=true]")).to_have_count(4)


async def events_until(server: RunningServer, event: str) -> list[str]:
    """Watch a server until something has happened; return all that has."""
    events: list[str] = []
    picture = LivePicture()
    address = server.url.replace("http", "ws")
    key = {"Authorization": f"Bearer {KEY}"}
    async with connect(f"{address}/live", subprotocols=[LIVE_PROTOCOL], additional_headers=key) as watcher:
        while event not in events:
            picture.receive(bytes(await watcher.recv(decode=False)))
            assert picture.state is not None
            events += events_of(picture.state)
    return events


@pytest.mark.parametrize(
    "model", [long("guide"), pytest.param("smollm2", marks=[pytest.mark.real, pytest.mark.timeout(900)])]
)
async def test_the_tour_runs_to_its_end(browser: Browser, model: str) -> None:
    if model == smollm2.NAME and not smollm2.is_there():
        pytest.skip("there is no real model; run `make real-model`")
    async with running(model, "--num-kv-blocks", "200") as server:
        context, page = await new_page(browser, reduced_motion=MOVING)
        watch = PageWatch(page)
        await unlock(page, f"{server.url}/#live")
        tour = await begin(page)
        watching = asyncio.create_task(events_until(server, "copied"))
        titles = []
        while True:
            titles.append(await tour.get_by_role("heading").inner_text())
            await tour.get_by_role("button", name="Show it").click()
            await expect_over(page, tour)
            await expect(tour.get_by_role("status")).to_have_text("")
            if await tour.get_by_role("button", name="End").count():
                break
            await tour.get_by_role("button", name="Next").click()
            await expect(tour.get_by_role("heading")).not_to_have_text(titles[-1])
        assert len(set(titles)) == 9
        assert "copied" in await asyncio.wait_for(watching, TIMEOUT_MS / 1000)
        await tour.get_by_role("button", name="End").click()
        await expect(tour).to_have_count(0)
        await expect(page.locator(".answer")).to_have_count(0)
        await watch.check(page, server.url)
        await context.close()


async def test_a_small_pool_is_filled_until_a_request_loses_its_blocks(browser: Browser, shots: Shots) -> None:
    async with running("--num-kv-blocks", "48") as server:
        context, page = await new_page(browser, reduced_motion=MOVING)
        watch = PageWatch(page)
        await unlock(page, f"{server.url}/#live")
        tour = await begin(page)
        await go_to(tour, FULL_POOL)
        watching = asyncio.create_task(events_until(server, "preempted"))
        await watch_for(page, "isPreempted", "/preempted/.test(document.querySelector('.live-queue').textContent)")
        await tour.get_by_role("button", name="Show it").click()
        await until_true(page, "isPreempted")
        await shots.take(page, "full-pool")
        assert "preempted" in await asyncio.wait_for(watching, TIMEOUT_MS / 1000)
        await expect_over(page, tour)
        await expect(page.locator(".live-phase")).to_have_text("")
        await watch.check(page, server.url)
        await context.close()


async def watch_scripted(page: Page, server: ScriptedServer, engine: MadeUpEngine) -> Locator:
    """Open the live view of a made-up engine, and go to the stop of the full pool."""
    await page.goto(f"{server.url}/#live")
    await (await server.next_watcher()).send_bytes(engine.whole())
    tour = await begin(page)
    await go_to(tour, FULL_POOL)
    return tour


async def show_recording(page: Page, tour: Locator) -> None:
    """Play the recording until the pool is full, when time stands still."""
    await page.evaluate(HOLD_TIME)
    await tour.get_by_role("button", name="Show it").click()
    block_map = page.get_by_role("application", name=re.compile("^Map of"))
    await expect(block_map).to_have_accessible_name(re.compile(r"\b32 blocks"))
    await page.evaluate("goTo", FULL_MS)
    for state in ("swapped", "preempted"):
        await expect(page.get_by_role("button", name=re.compile(f"^Request .*: {state}")).first).to_be_visible()


async def test_a_recording_shows_what_a_large_pool_cannot(page: Page, server: ScriptedServer, shots: Shots) -> None:
    tour = await watch_scripted(page, server, MadeUpEngine(2000))
    await expect(tour).to_contain_text("2,000 blocks are too many to fill")
    block_map = page.get_by_role("application", name=re.compile("^Map of"))
    await expect(block_map).to_have_accessible_name(re.compile("the first 256 of 2,000 blocks"))
    await expect(page.locator("#live-story")).to_contain_text("These are the first 256 of 2,000; the others are free.")
    await show_recording(page, tour)
    phase = page.locator(".live-phase")
    await expect(phase).to_have_text("A recording, not this server")
    await shots.take(page, "recording")
    assert await violations(page) == []
    await page.evaluate("goTo", OVER_MS)
    await expect_over(page, tour)
    await expect(phase).to_have_text("")
    await expect(block_map).to_have_accessible_name(re.compile("2,000 blocks"))
    assert server.streams.empty()


# Whether all of the lanes is between the card of the tour and the end of the window.
LANES_ARE_SEEN = """(lanes) => {
  const { top, bottom } = lanes.getBoundingClientRect();
  const card = document.querySelector(".live-tour").getBoundingClientRect();
  return card.top >= 0 && top >= card.bottom - 1 && bottom <= innerHeight + 1;
}"""


async def test_blocks_are_shared_and_found_again_as_the_tour_says(browser: Browser) -> None:
    async with running() as server:
        context, page = await new_page(browser, reduced_motion=MOVING)
        await unlock(page, f"{server.url}/#live")
        tour = await begin(page)
        await go_to(tour, "Shared blocks")
        # Fast answers share blocks in a few pictures of each second, so each is looked at.
        await watch_for(page, "areShared", r"/shared\s+[1-9]/.test(document.querySelector('.live-legend').textContent)")
        await watch_for(page, "areFour", "document.querySelectorAll('.live-request').length === 4")
        await tour.get_by_role("button", name="Show it").click()
        await until_true(page, "areShared && areFour")
        await expect_over(page, tour)
        await expect(tour.get_by_role("button", name="Show it again")).to_be_visible()
        await go_to(tour, "The second turn")
        await expect(tour.get_by_role("button", name="Show it", exact=True)).to_be_visible()
        await context.close()
    async with running() as server:  # its cache is empty
        context, page = await new_page(browser, reduced_motion=MOVING)
        await unlock(page, f"{server.url}/#live")
        tour = await begin(page)
        await go_to(tour, "The second turn")
        figures = "document.querySelector('.live-figures').textContent"
        await watch_for(page, "areFound", rf"/cache hits\s*[1-9]\d* %/.test({figures})")
        await tour.get_by_role("button", name="Show it").click()
        await until_true(page, "areFound")
        await expect_over(page, tour)
        *first, second = await tokens_read(page)
        assert sum(first) > 5 * second
        # Steps of others come, and those that the card speaks of stay.
        await watch_for(page, "isSeen", "document.querySelector('.live-request') !== null")
        async with connect_client(server.url, KEY) as client:
            answer = await client.chat([{"role": "user", "content": QUESTION}], max_tokens=1500, ignore_eos=True)
            await answer.text()
        await until_true(page, "isSeen")
        await expect(page.locator(".live-lane[data-empty=true]")).to_have_count(4)
        assert await tokens_read(page) == [*first, second]
        steps = page.get_by_role("region", name="Steps")
        await expect(steps).to_contain_text("held until you go on")
        await tour.get_by_role("button", name="Back").click()
        await expect(steps).not_to_contain_text("held until you go on")
        await expect(page.locator("#live-step")).to_contain_text("1 token written")
        await context.close()


async def tokens_read(page: Page) -> list[int]:
    """Go with the arrow keys through the steps that are shown; return how many tokens of prompts they have read."""
    timeline = page.get_by_role("application", name=re.compile("^The newest steps"))
    await timeline.focus()
    texts = [""]
    for _ in range(80):
        text = await page.locator("#live-step").inner_text()
        # At the oldest one the arrow leads nowhere.
        if text != texts[-1]:
            texts.append(text)
        await page.keyboard.press("ArrowLeft")
    await timeline.blur()
    return [int(found) for text in reversed(texts) for found in re.findall(r"(\d+) prompt tokens? read", text)]


BLOCKS_ARE_SEEN = """(map) => {
  const { top, bottom } = map.getBoundingClientRect();
  const card = document.querySelector(".live-tour").getBoundingClientRect();
  return top >= card.bottom - 1 && bottom <= innerHeight + 1;
}"""


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1440, 900)])
async def test_the_blocks_stay_in_sight_beside_the_lanes_of_a_full_pool(
    page: Page, server: ScriptedServer, shots: Shots, width: int, height: int
) -> None:
    await page.set_viewport_size({"width": width, "height": height})
    tour = await watch_scripted(page, server, MadeUpEngine(2000))
    await show_recording(page, tour)
    await until_true(page.locator(".live-queue"), LANES_ARE_SEEN)
    await until_true(page.locator(".live-map"), BLOCKS_ARE_SEEN)
    await until_true(page.locator(".live-legend"), BLOCKS_ARE_SEEN)
    await shots.take(page, f"full-pool-{width}")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1440, 900), (390, 844)])
async def test_the_blocks_stay_in_sight_beside_the_steps_of_an_answer(
    page: Page, server: ScriptedServer, shots: Shots, width: int, height: int
) -> None:
    await page.set_viewport_size({"width": width, "height": height})
    await page.goto(f"{server.url}/#live")
    await (await server.next_watcher()).send_bytes(MadeUpEngine(2000).whole())
    tour = await begin(page)
    await tour.get_by_role("button", name="Show it").click()
    await server.next_stream()
    await until_true(page.locator(".live-map"), BLOCKS_ARE_SEEN)
    await until_true(page.locator(".live-legend"), BLOCKS_ARE_SEEN)
    await until_true(page.locator(".live-steps"), BLOCKS_ARE_SEEN)
    await shots.take(page, f"one-answer-{width}")


async def test_the_figures_stay_in_sight_beside_the_list(page: Page, server: ScriptedServer) -> None:
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.goto(f"{server.url}/#live")
    await (await server.next_watcher()).send_bytes(MadeUpEngine(2000).whole())
    await page.get_by_role("button", name="Conversations", exact=True).click()
    tour = await begin(page)
    await tour.get_by_role("button", name="Show it").click()
    await server.next_stream()
    await until_true(page.locator(".live-steps"), BLOCKS_ARE_SEEN)
    await until_true(page.locator(".live-figures"), BLOCKS_ARE_SEEN)


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
async def test_what_a_stop_speaks_of_is_seen_beside_its_card(
    page: Page, server: ScriptedServer, shots: Shots, width: int, height: int
) -> None:
    await page.set_viewport_size({"width": width, "height": height})
    tour = await watch_scripted(page, server, MadeUpEngine(2000))
    await show_recording(page, tour)
    await until_true(page.locator(".live-queue"), LANES_ARE_SEEN)
    await shots.take(page, f"tour-{width}")
    await expect(tour.get_by_role("button", name="Stop")).to_be_in_viewport()


async def test_a_recording_can_be_stopped(page: Page, server: ScriptedServer) -> None:
    tour = await watch_scripted(page, server, MadeUpEngine(2000))
    await show_recording(page, tour)
    await tour.get_by_role("button", name="Stop").click()
    await expect(page.locator(".live-phase")).to_have_text("")
    await expect(page.locator(".live-lane[data-empty=true]")).to_have_count(4)
    await tour.get_by_role("button", name="Show it").click()
    await expect(page.locator(".live-phase")).to_have_text("A recording, not this server")
    await tour.get_by_role("button", name="Next").click()
    await expect(page.locator(".live-phase")).to_have_text("")


async def test_a_server_with_work_to_do_is_asked_for_nothing(page: Page, server: ScriptedServer) -> None:
    engine = MadeUpEngine(48)
    engine.figures["waiting"] = 3
    tour = await watch_scripted(page, server, engine)
    await page.evaluate(HOLD_TIME)
    await tour.get_by_role("button", name="Show it").click()
    await expect(tour.get_by_role("status")).to_contain_text("3 wait")
    await expect(page.locator(".live-phase")).to_have_text("A recording, not this server")
    await tour.get_by_role("button", name="Next").click()
    await tour.get_by_role("button", name="Show it").click()
    await expect(tour.get_by_role("status")).to_contain_text("3 wait")
    await expect(tour.get_by_role("button", name="Show it")).to_be_visible()
    await expect(page.locator(".live-phase")).to_have_text("")
    assert server.streams.empty()


@pytest.mark.own_page
async def test_a_recording_that_is_missing_is_said(page: Page, server: ScriptedServer) -> None:
    tour = await watch_scripted(page, server, MadeUpEngine(2000))
    await page.route("**/full_pool.bin", lambda route: route.abort())
    await tour.get_by_role("button", name="Show it").click()
    await expect(tour.get_by_role("status")).to_have_text("The recording cannot be loaded from the server.")
    await expect(page.locator(".live-phase")).to_have_text("")


@pytest.mark.real
@pytest.mark.timeout(900)
async def test_an_answer_of_a_real_model_is_seen_being_written(browser: Browser, shots: Shots) -> None:
    """Beside those of others; the picture in the README is this screenshot."""
    if not smollm2.is_there():
        pytest.skip("there is no real model; run `make real-model`")
    async with running("smollm2", "--num-kv-blocks", "240") as server:
        context, page = await new_page(browser, viewport={"width": 1280, "height": 900}, reduced_motion=MOVING)
        watch = PageWatch(page)
        await unlock(page, f"{server.url}/#live")
        async with connect_client(server.url, KEY) as client:
            earlier = await client.chat([{"role": "user", "content": QUESTION[::-1]}], max_tokens=200, ignore_eos=True)
            await earlier.text()
            for number, question in enumerate(OTHERS):
                messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
                answer = await client.chat(messages, n=1 + number % 2, max_tokens=240, ignore_eos=True)
                await anext(answer.events())
            await ask(page, QUESTION)
            answer_on_page = last_answer(page)
            await until_true(answer_on_page, "answer => /[1-8]/.test(answer.dataset.hue ?? '')")  # it is soon written
            hue = await answer_on_page.get_attribute("data-hue")
            await answer_on_page.locator(".prose").click()
            lit = page.locator(".live-request[aria-pressed=true]")
            await expect(lit).to_have_attribute("data-hue", hue or "")
            await lit.click()
            await expect(lit).to_have_count(0)
            await expect(answer_on_page.locator(".tokens b")).to_have_text(re.compile(r"^(9\d|\d{3})$"))
            await page.mouse.move(0, 0)
            await shots.take(page, "live")
        await watch.check(page, server.url)
        await context.close()
