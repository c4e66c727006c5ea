"""Who watches a server meanwhile: watchers in a process of their own, or the page in Chromium."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.server_process import ServerProcess
from benchmarks.side import Program, with_checkout
from tools.browser import FLAGS, find

if TYPE_CHECKING:  # `make dev` brings it
    from playwright.sync_api import Page

ANSWER_S = 60.0
BLANK = "about:blank"
CANVAS = ".live-map canvas"


@dataclass
class Watched:
    """What watchers have received; known when they have left, of the page never.

    Attributes:
        num_messages, num_bytes: of all.
        num_pictures: how many there were, received or not.
        reading_s: processor seconds of their process.
        seconds: how long they have watched.
    """

    num_messages: int = 0
    num_bytes: int = 0
    num_pictures: int = 0
    reading_s: float = 0.0
    seconds: float = 1.0

    @property
    def messages_per_s(self) -> float:
        """Messages in a second, of all."""
        return self.num_messages / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes in a second, of all."""
        return self.num_bytes / self.seconds

    @property
    def pictures_per_s(self) -> float:
        """Pictures in a second."""
        return self.num_pictures / self.seconds


Watch = Callable[[], AbstractContextManager[Watched]]
"""Watches for the time of a block; the block begins when the first picture has come."""


@contextmanager
def watcher_process(port: int, folder: Path) -> Iterator[Callable[[int, bool], Watch]]:
    """Start the watchers of a server, and yield what makes a `Watch` of how many watch and whether they read."""
    command = [sys.executable, "-m", "benchmarks.live.watcher_process", str(port)]
    with Program(command, folder / "watchers.log", with_checkout(), "watchers", ANSWER_S) as program:
        yield lambda num_watchers, is_reading: partial(_watching, program, num_watchers, is_reading)


def find_chromium() -> str | None:
    """Return the Chromium of the tests, None if it or what drives it is not installed."""
    return find() if find_spec("playwright") else None


@contextmanager
def chromium(server: ServerProcess, executable: str) -> Iterator[Watch]:
    """Start Chromium, and yield what draws the engine in it. In this thread no other event loop can run meanwhile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield partial(_drawing, browser.new_page(), f"{server.target.url}/#live")
        finally:
            browser.close()


@contextmanager
def _watching(program: Program, num_watchers: int, is_reading: bool) -> Iterator[Watched]:
    program.ask("watch", num_watchers=num_watchers, is_reading=is_reading)
    watched = Watched()
    yield watched
    for name, value in program.ask("leave").items():
        setattr(watched, name, value)


@contextmanager
def _drawing(page: Page, url: str) -> Iterator[Watched]:
    page.goto(url)
    page.locator(CANVAS).first.wait_for()
    yield Watched()
    page.goto(BLANK)
