"""The page in Chromium: one browser for the run, a scripted server for each test, and a page that is checked."""

import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.e2e.browsing import MOVING, STILL, TIMEOUT_MS, PageWatch, new_page
from tests.e2e.kept_page import KeptPage
from tests.e2e.scripted import STATIC, ScriptedServer
from tests.e2e.shots import Shots
from tools.browser import FLAGS, HELP, find


def chromium() -> str:
    """The browser to test with; without one the tests fail, or are skipped with QUIRE_NO_BROWSER=1."""
    found = find()
    if found is None and os.environ.get("QUIRE_NO_BROWSER") == "1":
        pytest.skip("no Chromium, and QUIRE_NO_BROWSER=1")
    if found is None:
        pytest.fail(f"There is no Chromium to test the page with; `make dev` brings one. {HELP}")
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests of the page."""
    executable = chromium()
    expect.set_options(timeout=TIMEOUT_MS)
    assert any(STATIC.glob("vendor/*.mjs")), "app/static/vendor is empty: run `pip install -e .` to fill it"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of one scripted server after the other: a page finds again what it has loaded from it."""
    with socket.socket() as holder:  # it does not listen; that it is bound keeps others from the port
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest_asyncio.fixture(loop_scope="session")
async def server(address: str) -> AsyncIterator[ScriptedServer]:
    """A ready server with the model `guide` and no key."""
    async with ScriptedServer(address).running() as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kept(browser: Browser) -> AsyncIterator[KeptPage]:
    """The page of the tests that need none of their own."""
    kept = KeptPage(browser)
    yield kept
    await kept.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(
    request: pytest.FixtureRequest, browser: Browser, server: ScriptedServer, kept: KeptPage
) -> AsyncIterator[Page]:
    """A desktop page, which is checked at the end. The test opens the address.

    It moves what it shows in tests with the mark `motion` only.
    """
    motion = MOVING if request.node.get_closest_marker("motion") else STILL
    if request.node.get_closest_marker("own_page"):
        context, page = await new_page(browser, reduced_motion=motion)
    else:
        page = await kept.open(motion)
        context = None
    watch = PageWatch(page)
    yield page
    try:
        await watch.check(page, server.url)
    finally:
        watch.end(page)
        await (context.close() if context else kept.empty(server.url))


@pytest.fixture(scope="session")
def shots() -> Shots:
    """Screenshots in the folder QUIRE_SHOTS, if it is set."""
    return Shots(os.environ.get("QUIRE_SHOTS"))
