"""The page in Chromium: one browser for the run, a scripted server and a checked page for each test."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.e2e.browsing import TIMEOUT_MS, PageWatch, new_page
from tests.e2e.scripted import STATIC, ScriptedServer
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


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[ScriptedServer]:
    """A ready server with the model `guide` and no key."""
    async with ScriptedServer().running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: ScriptedServer) -> AsyncIterator[Page]:
    """A desktop page, which is checked at the end. The test opens the address."""
    context, page = await new_page(browser)
    watch = PageWatch(page)
    yield page
    await watch.check(page, server.url)
    await context.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: QUIRE_SHOTS or a temporary folder."""
    named = os.environ.get("QUIRE_SHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
