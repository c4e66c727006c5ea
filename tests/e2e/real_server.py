"""`quire serve` for the tests of the page: a process with one API key, on a free port."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE, STDOUT
from typing import NamedTuple

from playwright.async_api import Page, expect

from tests.server.processes import QUIRE_SERVE
from tests.server.quick_start import ForkedProcess

KEY = "sheet-and-thread"
START_S = 240


class RunningServer(NamedTuple):
    """A running server and its address."""

    process: ForkedProcess
    url: str


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[RunningServer]:
    """Serve the embedded model, which may still be loaded when the block begins; `options` may name another model."""
    process = ForkedProcess([*QUIRE_SERVE, *options, "--port", "0", "--api-key", KEY], stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    output, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
    url: asyncio.Future[str] = loop.create_future()
    reader = asyncio.create_task(listen(output, url))
    try:
        yield RunningServer(process, await asyncio.wait_for(url, START_S))
    finally:
        process.kill()
        await reader
        await asyncio.to_thread(process.wait, START_S)


async def listen(output: asyncio.StreamReader, url: asyncio.Future[str]) -> None:
    """Print the server's output, for the report of a failed test, and set `url` when a line contains it."""
    async for line in output:
        print(line.decode(), end="")
        found = re.search(r"http://[\w.:]+", line.decode())
        if found and not url.done():
            url.set_result(found[0])
    if not url.done():
        url.set_exception(RuntimeError("the server ended before it listened"))


async def unlock(page: Page, address: str) -> None:
    """Open an address of the page, and enter the key."""
    await page.goto(address)
    key = page.get_by_label("This server requires an API key.")
    await key.fill(KEY, timeout=START_S * 1000)
    await key.press("Enter")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
