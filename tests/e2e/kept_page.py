"""One page for one test after the other: to open another one, which reads 170 files, costs more than most tests.

Between two tests it is emptied of what a page can store. What else a test might change would stay: such a test has the
mark `own_page`, and without it an error.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from playwright.async_api import Browser, BrowserContext, CDPSession, Error, Page

from tests.e2e.browsing import DESKTOP, STILL, new_page

STAYING = ("add_init_script", "emulate_media", "expose_binding", "expose_function", "route", "route_web_socket")
"""What a page or its context cannot be rid of again."""
STAYING_OF_CONTEXTS = ("add_cookies", "add_init_script", "grant_permissions", "route", "set_offline")
STORED = "cookies,file_systems,indexeddb,local_storage,service_workers"


def refusal(name: str) -> Callable[..., NoReturn]:
    """What stands in the place of a method whose effect would stay."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise AssertionError(f"`{name}` would change the page of other tests; this one needs the mark `own_page`.")

    return refuse


class KeptPage:
    """The page of the tests of one process; it is opened when the first one needs it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: BrowserContext | None = None
        self._page: Page
        self._session: CDPSession
        self._motion = STILL

    async def open(self, motion: str = STILL) -> Page:
        """Return the page, which is as empty as a new one, and moves what it shows or does not."""
        if self._context is None:
            self._context, self._page = await new_page(self._browser)
            self._motion = STILL
            self._session = await self._context.new_cdp_session(self._page)
            self._emulate_media = self._page.emulate_media
            for name in STAYING:
                setattr(self._page, name, refusal(name))
            for name in STAYING_OF_CONTEXTS:
                setattr(self._context, name, refusal(name))
        if motion != self._motion:
            await self._emulate_media(reduced_motion=motion)
            self._motion = motion
        return self._page

    async def empty(self, url: str) -> None:
        """Remove what the page has stored for the server at an address, or close the page if that fails."""
        try:
            for page in self._page.context.pages:
                if page is not self._page:
                    await page.close()
            # Another document of the same origin: what the page does when it ends is over, and its tab's storage is in
            # reach.
            await self._page.goto(f"{url}/readyz")
            await self._page.evaluate("sessionStorage.clear()")
            await self._session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": STORED})
            await self._page.mouse.move(-1, -1)
            if self._page.viewport_size != DESKTOP:
                await self._page.set_viewport_size(DESKTOP)
        except Error:
            await self.close()

    async def close(self) -> None:
        """Close the page, if it is open."""
        if self._context is not None:
            with suppress(Error):
                await self._context.close()
            self._context = None
