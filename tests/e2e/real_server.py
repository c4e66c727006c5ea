"""`quire serve` for the tests of the page: a process with one API key, on a free port."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from playwright.async_api import Page, expect

KEY = "sheet-and-thread"
START_S = 240


class RunningServer(NamedTuple):
    """A running server and its address."""

    process: Process
    url: str


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[RunningServer]:
    """Serve the embedded model, which may still be loaded when the block begins; `options` may name another model."""
    command = (sys.executable, "-m", "app", "serve", *options, "--port", "0", "--api-key", KEY)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    assert process.stdout
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reader = asyncio.create_task(listen(process.stdout, url))
    try:
        yield RunningServer(process, await asyncio.wait_for(url, START_S))
    finally:
        if process.returncode is None:
            process.kill()
        await reader
        await process.wait()


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
