"""Reads the block map of the live view: which colours each of its cells has."""

import asyncio
from contextlib import suppress

from playwright.async_api import Page

from tests.e2e.browsing import TIMEOUT_MS

# For each cell, the names of the colours that it has pixels of; "free" is below a cached one, too.
COLOURS_OF_CELLS = """(map, count) => {
  const [cells] = map.querySelectorAll("canvas");
  const probe = document.createElement("span");
  document.body.append(probe);
  const names = {};
  for (const name of ["live-faint", ...Array.from({ length: 9 }, (_, hue) => `hue-${hue}`)]) {
    probe.style.color = `var(--${name})`;
    names[getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).join()] = name;
  }
  probe.remove();
  const { width, height } = cells;
  // Not of the canvas itself, which Chromium would complain about.
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(cells, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  let size = 1;
  while (Math.floor(width / (size + 1)) * Math.floor(height / (size + 1)) >= count && size < 24) size++;
  const columns = Math.floor(width / size);
  return Array.from({ length: count }, (_, index) => {
    const found = new Set();
    const [left, top] = [(index % columns) * size, Math.floor(index / columns) * size];
    // Without the gap, in which a thread goes to the next cell.
    for (let y = top; y < top + size - 2; y++) {
      for (let x = left; x < left + size - 2; x++) {
        const at = 4 * (y * width + x);
        const name = names[data.slice(at, at + 3).join()];
        if (name) found.add(name);
      }
    }
    return [...found].join(" ");
  });
}"""


async def drawn(page: Page, num_blocks: int) -> list[str]:
    """For each block of the map `hue-1` and so on if a request holds it, `live-faint` if it is cached, else nothing."""
    cells: list[str] = await page.locator(".live-map").evaluate(COLOURS_OF_CELLS, num_blocks)
    return cells


async def until_drawn(page: Page, cells: list[str]) -> None:
    """Wait until the map has these cells: it is painted when it has been measured, later than the legend is there."""
    found: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while True:
                found = await drawn(page, len(cells))
                if found == cells:
                    return
                await asyncio.sleep(0.02)
    assert found == cells
