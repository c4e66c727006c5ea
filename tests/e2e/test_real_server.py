"""The page against `quire serve`, from loading the model to the shutdown."""

import asyncio
import json
import re
import sys
import urllib.request
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.e2e.browsing import PageWatch, new_page, stored_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sheet-and-thread"
START_S = 240
ANSWER_MS = 60_000
QUESTION = "What is Quire?"


class RunningServer(NamedTuple):
    """A running `quire serve` with the embedded model and one API key."""

    process: Process
    url: str


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[RunningServer]:
    """Start the server on a free port; it may still load its model when the test begins."""
    command = (sys.executable, "-m", "app", "serve", "--port", "0", "--api-key", KEY)
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


def complete_answer(url: str) -> str:
    """The answer to the same question over the HTTP API, not streamed."""
    body = json.dumps({"messages": [{"role": "user", "content": QUESTION}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers)) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    assert isinstance(answer, str)
    return answer


async def test_the_page_works_with_the_embedded_model_and_survives_the_shutdown(
    browser: Browser, served: RunningServer, shots: Path
) -> None:
    context, page = await new_page(browser)
    watch = PageWatch(page)
    await page.goto(served.url)
    key = page.get_by_label("This server requires an API key.")
    await expect(key).to_be_focused(timeout=START_S * 1000)
    await key.fill(KEY)
    await key.press("Enter")
    await expect(page.locator(".model-name")).to_have_text("guide")

    await page.get_by_role("button", name=QUESTION).click()
    answer = page.locator(".answer")
    await expect(answer).to_have_attribute("data-state", "done", timeout=ANSWER_MS)
    stored = await stored_answer(page)
    assert stored["text"] == await asyncio.to_thread(complete_answer, served.url)
    assert stored["figures"]["tokens"] > 5
    await expect(answer.locator(".rate b")).to_have_text(re.compile(r"\d"))
    await expect(answer.locator(".first-token b")).to_have_text(re.compile(r"\d"))
    await page.screenshot(path=shots / "real.png")
    await watch.check(page, served.url)

    served.process.terminate()
    await expect(page.get_by_text("The server cannot be reached. Trying again…")).to_be_visible()
    assert await served.process.wait() == 0
    await expect(page.locator(".question p")).to_have_text(QUESTION)
    await context.close()
