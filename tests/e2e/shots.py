"""Screenshots of the page, which `make shots` asks for: the tests look at none."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page


class Shots:
    """Takes screenshots into a folder, or none without one."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder and Path(folder)
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)

    async def take(self, page: Page, name: str) -> None:
        """Keep what the window shows now under a name."""
        if self._folder:
            await page.screenshot(path=self._folder / f"{name}.png")
