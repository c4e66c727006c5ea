"""Each view and state in light and dark, on a desktop and a phone: axe finds nothing, and nothing is too wide."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import PageWatch, new_page
from tests.e2e.busy_engine import busy_engine
from tests.e2e.scripted import ScriptedServer
from tests.e2e.shots import Shots
from tests.e2e.tour import Look, Tour
from tests.e2e.tour_of_answers import TourOfAnswers

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDEST = "Math.max(document.documentElement.scrollWidth, document.querySelector('.log').scrollWidth)"
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "has_touch": True,
        "is_mobile": True,
        "device_scale_factor": 2,
    },
    # 1280 px at a zoom of 200 %
    "zoom": {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2},
}


# The tours of `make test` have each layout and each scheme once. Axe, which takes most of the time, sees half of the
# views in the one and the others in the other; in the other tours it sees all.
HALVES = {("desktop", "light"): 0, ("phone", "dark"): 1}


def tours() -> list[Any]:
    """Every size with every scheme."""
    every = itertools.product(SIZES, ("light", "dark"))
    return [pytest.param(*each, marks=() if each in HALVES else pytest.mark.long) for each in every]


async def look_at_engine(page: Page, server: ScriptedServer, look: Look) -> None:
    """The live view: a busy engine, its last lanes, a request whose blocks are lit, and the tour."""
    button = page.get_by_role("button", name="The engine at work")
    await button.click()
    await (await server.next_watcher()).send_bytes(busy_engine().whole())
    request = page.get_by_role("button", name="Request 3:")
    await expect(request).to_be_visible()
    await look("engine")
    await page.locator(".live-queue").scroll_into_view_if_needed()
    await look("engine-queue")
    await request.click()
    await expect(request).to_have_attribute("aria-pressed", "true")
    await look("engine-request")
    await page.get_by_role("button", name="Tour", exact=True).click()
    await expect(page.get_by_role("region", name="Tour")).to_be_visible()
    await look("engine-tour")
    await button.click()
    await expect(page.locator(".live")).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), tours())
async def test_every_view_is_accessible_and_fits_the_window(
    browser: Browser, server: ScriptedServer, shots: Shots, tmp_path: Path, scheme: str, size: str
) -> None:
    context, page = await new_page(browser, color_scheme=scheme, reduced_motion="reduce", **SIZES[size])
    watch = PageWatch(page)
    found: list[str] = []
    half, turns = HALVES.get((size, scheme)), itertools.count()

    async def look(view: str) -> None:
        if await page.evaluate(WIDEST) > SIZES[size]["viewport"]["width"]:
            found.append(f"{view} is wider than the window")
        if half in (None, next(turns) % 2):
            found.extend(f"{view}: {line}" for line in await violations(page))
        await shots.take(page, f"{view}-{size}-{scheme}")

    server.details = {
        "max_model_len": 2048,
        "format": "safetensors",
        "quantization": "int8",
        "capabilities": {"structured_output": True, "tools": True},
    }
    tour = Tour(page, server, look)
    await tour.start()
    await tour.answer()
    await tour.cut()
    await tour.editing()
    await tour.sheets()
    await tour.sidebar(tmp_path)
    await tour.branches()
    await tour.preview()
    answers = TourOfAnswers(page, server, look)
    await answers.probabilities()
    await answers.sides()
    await look_at_engine(page, server, look)
    await tour.storage()
    await tour.waiting()
    await tour.failures()
    assert found == [], "\n".join(found)
    await watch.check(page, server.url)
    await context.close()


async def test_a_private_window_is_accessible(browser: Browser, server: ScriptedServer, shots: Shots) -> None:
    context, page = await new_page(browser)
    await page.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    await page.goto(server.url)
    await expect(page.get_by_role("alert")).to_contain_text("This browser stores nothing")
    assert await violations(page) == []
    await shots.take(page, "private-desktop-light")
    await context.close()


async def test_axe_finds_what_is_wrong(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".welcome")).to_be_visible()
    await page.evaluate("document.querySelector('.lead').append(document.createElement('button'))")
    assert [line.split(":")[0] for line in await violations(page)] == ["button-name"]
