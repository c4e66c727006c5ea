"""The page against `quire serve`, from loading the model to the shutdown."""

import asyncio
import itertools
import json
import math
import re
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from websockets.asyncio.client import ClientConnection, connect

from app.client.live_picture import LivePicture
from app.contract.live_state import LIVE_PROTOCOL, CellState, LiveState
from tests.e2e.browsing import TIMEOUT_MS, PageWatch, ask, new_page, stored, stored_answer
from tests.e2e.drawn_map import drawn
from tests.e2e.real_server import KEY, START_S, RunningServer, running, unlock
from tests.e2e.scripted import LIMITS
from tests.e2e.shots import Shots
from tests.e2e.test_blocked_websockets import BLOCKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER_MS = 60_000
QUESTION = "What is Quire?"


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[RunningServer]:
    """A server with 200 blocks."""
    async with running("--num-kv-blocks", "200") as server:
        yield server


def complete_choices(url: str, **fields: Any) -> list[dict[str, Any]]:
    """The answers to the same question over the HTTP API, not streamed."""
    body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], **fields}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers)) as response:
        choices: list[dict[str, Any]] = json.load(response)["choices"]
    return choices


def complete_answer(url: str) -> str:
    """The answer to the same question over the HTTP API, not streamed."""
    answer = complete_choices(url)[0]["message"]["content"]
    assert isinstance(answer, str)
    return answer


async def test_the_page_works_with_the_embedded_model_and_survives_the_shutdown(
    browser: Browser, served: RunningServer, shots: Shots
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
    await shots.take(page, "real")
    await watch.check(page, served.url)

    served.process.terminate()
    await expect(page.get_by_text("The server cannot be reached. Trying again…")).to_be_visible()
    assert await asyncio.to_thread(served.process.wait) == 0
    await expect(page.locator(".question p")).to_have_text(QUESTION)
    await context.close()


@pytest.mark.parametrize("websockets", ["", BLOCKED], ids=["websockets", "http"])
async def test_several_answers_have_the_texts_and_probabilities_of_the_api_also_over_a_reload(
    browser: Browser, served: RunningServer, shots: Shots, websockets: str
) -> None:
    context, page = await new_page(browser)
    watch = PageWatch(page)
    await page.add_init_script(websockets)
    await unlock(page, served.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    for label, value in (("Answers at once", "3"), ("Temperature", "2"), ("Seed", "7"), ("Max tokens", "400")):
        await page.get_by_label(label, exact=True).fill(value)
    await page.get_by_label("Token probabilities").select_option("on")
    await page.keyboard.press("Escape")
    await ask(page, QUESTION)
    await expect(page.locator(".sides .token").first).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("button", name="Go on with this one")).to_have_count(3)
    await stored_answer(page)
    stored_answers = sorted(
        (record for record in await stored(page) if "beside" in record), key=lambda record: record["beside"]["number"]
    )
    sampled = {"n": 3, "temperature": 2, "seed": 7, "max_tokens": 400, "logprobs": True, "top_logprobs": 5}
    choices = await asyncio.to_thread(lambda: complete_choices(served.url, **LIMITS, **sampled))
    texts = [choice["message"]["content"] for choice in choices]
    assert [record["text"] for record in stored_answers] == texts
    assert len(set(texts)) == 3
    for record, choice in zip(stored_answers, choices, strict=True):
        shown = [token["text"] for token in record["tokens"] if not token.get("isEnd")]
        # The text of an answer has no special tokens, which may be sampled at this temperature.
        assert "".join(text for text in shown if not re.fullmatch(r"<\|\w+\|>", text)) == record["text"]
        entries = iter(choice["logprobs"]["content"])
        # Tokens that make one character are one.
        told = [
            math.exp(sum(entry["logprob"] for entry in itertools.islice(entries, token.get("numTokens", 1))))
            for token in record["tokens"]
        ]
        assert [token["p"] for token in record["tokens"]] == pytest.approx(told, rel=1e-3)
        assert next(entries, None) is None
    await shots.take(page, f"real-sides{'-http' if websockets else ''}")
    await watch.check(page, served.url)
    await context.close()


def looks(picture: LivePicture, hues: dict[int, str]) -> list[str]:
    """What the page draws of a picture."""
    held = (CellState.USED, CellState.SHARED)
    cells = [(picture.state_of(number + 1), owner) for number, owner in enumerate(picture.owners)]
    return [
        hues[owner] if state in held else "live-faint" if state == CellState.CACHED else "" for state, owner in cells
    ]


async def expect_same(page: Page, watcher: ClientConnection, picture: LivePicture, *states: str) -> LiveState:
    """Wait until all requests are in these states, then until the page draws what Python has decoded."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while picture.state is None or [str(group.state) for group in picture.state.groups] != [*states]:
            picture.receive(bytes(await watcher.recv(decode=False)))
        hues = {group.n: f"hue-{number}" for number, group in enumerate(picture.state.groups, 1)}
        while True:
            if await drawn(page, 200) == looks(picture, hues):
                return picture.state
            await asyncio.sleep(0.05)


async def test_the_live_view_draws_what_the_server_sends(browser: Browser, served: RunningServer) -> None:
    context, page = await new_page(browser)
    await unlock(page, f"{served.url}/#live")
    address = served.url.replace("http", "ws")
    key = {"Authorization": f"Bearer {KEY}"}
    picture = LivePicture()
    async with (
        connect(f"{address}/live", subprotocols=[LIVE_PROTOCOL], additional_headers=key) as watcher,
        connect(f"{address}/ws", subprotocols=["quire.v1"], additional_headers=key) as reader,
    ):
        state = await expect_same(page, watcher, picture)
        assert state.blocks.used == 0
        # It takes no more tokens, and keeps its blocks meanwhile. A short one would end before the loop can pause it.
        await reader.send(json.dumps({"t": "hello", "protocol": "quire.v1"}))
        request = {"messages": [{"role": "user", "content": QUESTION}], "ignore_eos": True, "max_tokens": 1500}
        await reader.send(json.dumps({"t": "start", "id": "1", "request": request, "credit": 40}))
        state = await expect_same(page, watcher, picture, "paused")
        assert state.blocks.used >= 3
        await expect(page.get_by_role("button", name="Request 1: paused")).to_be_visible()
        await reader.send(json.dumps({"t": "cancel", "id": "1"}))
        state = await expect_same(page, watcher, picture)
        assert state.blocks.used == 0 < state.blocks.cached
    await context.close()
