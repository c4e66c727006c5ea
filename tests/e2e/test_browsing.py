"""What watches the pages of the tests tells what a document has loaded from elsewhere, and what it only asked for."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.e2e.browsing import PageWatch, new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOAD = "url => new Promise(end => { const image = new Image(); image.onload = image.onerror = end; image.src = url; })"
FRAME = """url => new Promise(end => { const frame = document.createElement("iframe");
    frame.onload = end; frame.src = url; document.body.append(frame); })"""
SANDBOX = """text => new Promise(end => { const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts"; frame.onload = end; frame.srcdoc = text; document.body.append(frame); })"""


@pytest_asyncio.fixture(loop_scope="session")
async def watched(browser: Browser, server: ScriptedServer) -> AsyncIterator[tuple[Page, PageWatch]]:
    """A document that may load anything: it has no policy."""
    context, page = await new_page(browser)
    watch = PageWatch(page)
    await page.goto(f"{server.url}/readyz")
    yield page, watch
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def other() -> AsyncIterator[ScriptedServer]:
    """Another server of this machine."""
    async with ScriptedServer().running() as other:
        yield other


async def test_what_is_loaded_from_the_server_is_allowed(
    watched: tuple[Page, PageWatch], server: ScriptedServer
) -> None:
    page, watch = watched
    await page.evaluate(LOAD, f"{server.url}/static/quire.svg")
    await page.evaluate(LOAD, "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=")
    await page.evaluate(FRAME, f"{server.url}/readyz")
    await page.evaluate(SANDBOX, f"<img src='{server.url}/static/quire.svg'>")
    await watch.check(page, server.url)


@pytest.mark.parametrize("way", ["image", "frame", "image of a frame"])
async def test_what_is_loaded_from_another_server_is_told(
    watched: tuple[Page, PageWatch], server: ScriptedServer, other: ScriptedServer, way: str
) -> None:
    page, watch = watched
    url = f"{other.url}/static/none.svg"
    match way:
        case "image":
            await page.evaluate(LOAD, url)
        case "frame":
            await page.evaluate(FRAME, url)
        case _:
            await page.evaluate(SANDBOX, f"<img src='{url}'>")
    with pytest.raises(AssertionError, match=r"none\.svg"):
        await watch.check(page, server.url)


async def test_what_a_document_has_loaded_is_told_when_it_is_gone(
    watched: tuple[Page, PageWatch], server: ScriptedServer, other: ScriptedServer
) -> None:
    page, watch = watched
    async with page.expect_console_message(lambda message: "loaded" in message.text):
        await page.evaluate(LOAD, f"{other.url}/static/none.svg")
    await page.goto(f"{server.url}/readyz")
    with pytest.raises(AssertionError, match=r"loaded .*none\.svg"):
        await watch.check(page, server.url)


async def test_that_the_page_was_elsewhere_is_told(
    watched: tuple[Page, PageWatch], server: ScriptedServer, other: ScriptedServer
) -> None:
    page, watch = watched
    await page.goto(f"{other.url}/readyz")
    await page.goto(f"{server.url}/readyz")
    with pytest.raises(AssertionError, match=other.url):
        await watch.check(page, server.url)


async def test_what_is_asked_of_another_host_is_told_though_nothing_comes(
    watched: tuple[Page, PageWatch], server: ScriptedServer
) -> None:
    page, watch = watched
    async with page.expect_request("http://example.com/never"):
        await page.evaluate("() => { fetch('http://example.com/never').catch(() => {}); }")
    with pytest.raises(AssertionError, match=r"GET http://example\.com/never"):
        await watch.check(page, server.url)
