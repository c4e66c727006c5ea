"""What the page costs the browser, against the scripted server: `python -m tests.e2e.ui_bench [PART ...]`.

- `frames`: scripting of each frame while 200 tokens/s stream into an answer of 50 KB, below 200 earlier messages, from
  Chromium's trace. Layout that a script forces is not scripting; it is printed beside.
- `list`: 500 conversations with 10,000 messages: from the click to the painted list, and from a typed query to the
  painted result, 20 times each, after the page is ready.
- `live`: scripting of each frame of the live view while the blocks of 100,000 change ten times a second, 200 requests.
- `heap`: how much the heap after a collection grows over 50 answers in 10 minutes, beside the text received.

Exits 1 when a limit is missed.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from playwright.async_api import Browser, CDPSession, Page, async_playwright, expect

from tests.e2e.browsing import MOVING, TIMEOUT_MS, ask, last_answer, new_page
from tests.e2e.conftest import chromium
from tests.e2e.live_messages import FREE, USED, MadeUpEngine
from tests.e2e.scripted import ScriptedServer, Stream
from tests.e2e.tour import RICH
from tests.e2e.traces import scripting_of_frames
from tools.browser import FLAGS

CATEGORIES = ["devtools.timeline", "v8", "blink"]  # with blink come the frames
RATE = 200  # tokens/s
TOKEN = 4  # characters
ANSWER = 50_000  # characters
MEDIAN_MS, P95_MS, LIST_MS, LIVE_MS, HEAP_FACTOR = 2.0, 6.0, 100.0, 8.0, 10.0
LIVE_BLOCKS, LIVE_REQUESTS, LIVE_CHANGES, LIVE_MESSAGES = 100_000, 200, 500, 100
ROUNDS = 20
SEED = """async ([conversations, messages]) => {
  const result = (request) => new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
  });
  const db = await result(indexedDB.open("quire"));
  const stores = db.transaction(["conversations", "messages"], "readwrite");
  for (const record of conversations) stores.objectStore("conversations").put(record);
  for (const record of messages) stores.objectStore("messages").put(record);
  await new Promise((done) => (stores.oncomplete = done));
  db.close();
}"""
TOGGLE = """async (isOpen) => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const start = performance.now();
  document.querySelector("[aria-controls=sidebar]").click();
  while (Boolean(document.querySelector(".conversation")) !== isOpen) await painted();
  await painted();
  return performance.now() - start;
}"""
SEARCH = """async ([query, count]) => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const field = document.querySelector("input[type=search]");
  field.focus();
  const start = performance.now();
  field.value = query;
  field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  while (document.querySelectorAll(".conversation").length !== count) await painted();
  await painted();
  return performance.now() - start;
}"""


def records(num_conversations: int, num_messages: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Conversations of `num_messages` each, as the page stores them; number 7 contains the word `number7x`."""
    conversations, messages = [], []
    for number in range(num_conversations):
        name = f"c{number}"
        ids = [f"{name}-m{index}" for index in range(num_messages)]
        times = {"createdAt": 1_000_000 + number, "updatedAt": 1_000_000 + number}
        named = {"title": f"Conversation {number}", "titleFrom": "user", "isPinned": False}
        conversations.append({"id": name, **named, **times, "head": ids[-1], "settings": {}, "draft": ""})
        for index, message in enumerate(ids):
            fields = {"role": "user", "text": f"Question {index} with number{number}x?"}
            if index % 2:
                fields = {"role": "assistant", "text": RICH, "state": "done", "finish": "stop"}
            parent = ids[index - 1] if index else None
            messages.append({"id": message, "conversation": name, "parent": parent, "createdAt": index, **fields})
    return conversations, messages


async def open_with(page: Page, server: ScriptedServer, num_conversations: int, num_messages: int) -> None:
    """Open the page with these stored conversations, the first one shown."""
    await page.goto(server.url)
    await expect(page.locator(".body")).to_have_attribute("aria-busy", "false")
    await page.evaluate(SEED, list(records(num_conversations, num_messages)))
    await page.goto("about:blank")  # the open page forgets an address that it does not know
    await page.goto(f"{server.url}/#c0")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await expect(page.locator("article")).to_have_count(num_messages)


async def stream_at(stream: Stream, text: str, rate: float) -> None:
    """Send a text as tokens of 4 characters, `rate` a second."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number, offset in enumerate(range(0, len(text), TOKEN)):
        await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
        await stream.delta(text[offset : offset + TOKEN])
    await stream.done()


def judge(what: str, value: float, limit: float, unit: str) -> bool:
    """Print a figure beside its limit."""
    is_met = value <= limit
    print(f"{what}: {value:.2f} {unit} (limit {limit:g} {unit}{'' if is_met else '; missed'})", flush=True)
    return is_met


async def frames(page: Page, server: ScriptedServer, _minutes: float) -> bool:
    """Scripting per frame of a long answer in a long conversation."""
    await open_with(page, server, 1, 200)
    await ask(page, "Tell me everything.")
    stream = await server.next_stream()
    session = await page.context.new_cdp_session(page)
    events = await traced(session, stream_at(stream, (RICH * (ANSWER // len(RICH) + 1))[:ANSWER], RATE))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    scripting, forced = scripting_of_frames(events)
    cuts = statistics.quantiles(scripting, n=20)
    median, p95 = statistics.median(forced), statistics.quantiles(forced, n=20)[18]
    print(f"{len(scripting)} frames; the longest {max(scripting):.1f} ms of scripting")
    print(f"layout forced by scripts: median {median:.2f} ms, p95 {p95:.2f} ms")
    is_median_met = judge("scripting per frame, median", cuts[9], MEDIAN_MS, "ms")
    return judge("scripting per frame, p95", cuts[18], P95_MS, "ms") and is_median_met


async def traced(session: CDPSession, work: Awaitable[None]) -> list[dict[str, Any]]:
    """The events of Chromium's timeline during some work."""
    events: list[dict[str, Any]] = []
    is_complete = asyncio.Event()
    session.on("Tracing.dataCollected", lambda data: events.extend(data["value"]))
    session.on("Tracing.tracingComplete", lambda _: is_complete.set())
    config = {
        "includedCategories": CATEGORIES,
        "recordMode": "recordContinuously",
    }
    await session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": config})
    await work
    await session.send("Tracing.end")
    await is_complete.wait()
    return events


async def lists(page: Page, server: ScriptedServer, _minutes: float) -> bool:
    """The list and the search of many conversations."""
    await open_with(page, server, 500, 20)
    await expect(page.locator(".conversation")).to_have_count(500)
    opened = []
    for _ in range(ROUNDS):
        await page.evaluate(TOGGLE, False)
        opened.append(await page.evaluate(TOGGLE, True))
    first = await page.evaluate(SEARCH, ["number7x", 1])
    searched = [
        await page.evaluate(SEARCH, [f"number{number}x" if number % 2 else "key-value", 1 if number % 2 else 500])
        for number in range(101, 101 + ROUNDS)
    ]
    print(f"the first search, which reads all texts: {first:.0f} ms")
    is_list_met = judge("list, median of 20", statistics.median(opened), LIST_MS, "ms")
    return judge("search, median of 20", statistics.median(searched), LIST_MS, "ms") and is_list_met


async def live(page: Page, server: ScriptedServer, _minutes: float) -> bool:
    """Scripting per frame of the live view of a large pool."""
    engine = MadeUpEngine(LIVE_BLOCKS)
    size = LIVE_BLOCKS // LIVE_REQUESTS
    for number in range(1, LIVE_REQUESTS + 1):
        first = 1 + (number - 1) * size
        engine.set(USED, range(first, first + size - 100), owner=number)
        engine.add(number, prompt=6000, computed=6400, output=400, limit=4000, tables=[[0, 6400, [first, size - 100]]])
    await page.goto(f"{server.url}/#live")
    watcher = await server.next_watcher()
    await watcher.send_bytes(engine.whole())
    await expect(page.locator(".live-map")).to_be_visible()

    async def change() -> None:
        for number in range(LIVE_MESSAGES):
            state, owner = (USED, 1) if number % 2 == 0 else (FREE, 0)
            engine.set(state, range(size - 99, LIVE_BLOCKS, LIVE_BLOCKS // LIVE_CHANGES), owner=owner)
            engine.step(40.0, *((each, 0, 1, 0) for each in range(1, LIVE_REQUESTS + 1)))
            await watcher.send_bytes(engine.difference())
            await asyncio.sleep(0.1)

    scripting, _ = scripting_of_frames(await traced(await page.context.new_cdp_session(page), change()))
    busy = [each for each in scripting if each > 0.5]  # the others have no message
    print(f"{len(busy)} frames with a message; the longest {max(busy):.1f} ms of scripting")
    return judge("live view, scripting per frame, median", statistics.median(busy), LIVE_MS, "ms")


async def heap(page: Page, server: ScriptedServer, minutes: float) -> bool:
    """Growth of the heap over 50 answers."""
    await page.goto(server.url)
    session = await page.context.new_cdp_session(page)
    text = RICH * 9
    rate = 50 * len(text) / TOKEN / (minutes * 60)
    before = received = 0.0
    for number in range(51):
        await ask(page, f"Question {number}?")
        await stream_at(await server.next_stream(), text, rate)
        await expect(page.locator(".answer[data-state='done']")).to_have_count(number + 1)
        if number == 0:
            before = await heap_bytes(session)  # what is loaded for the first answer stays
        else:
            received += len(text)
    growth = await heap_bytes(session) - before
    print(f"{received / 1e3:.0f} KB received at {rate:.0f} tokens/s")
    print(f"the heap grew by {growth / 1e3:.0f} KB from {before / 1e3:.0f} KB")
    return judge("growth of the heap per text received", growth / received, HEAP_FACTOR, "times")


async def heap_bytes(session: CDPSession) -> float:
    """The used heap after a collection."""
    await session.send("HeapProfiler.enable")
    for _ in range(2):
        await session.send("HeapProfiler.collectGarbage")
    used: float = (await session.send("Runtime.getHeapUsage"))["usedSize"]
    return used


PARTS: dict[str, Callable[[Page, ScriptedServer, float], Awaitable[bool]]] = {
    "frames": frames,
    "list": lists,
    "live": live,
    "heap": heap,
}


async def run(browser: Browser, names: Sequence[str], minutes: float) -> bool:
    """Run parts, each in a browser context of its own."""
    results = []
    for name in names:
        async with ScriptedServer().running() as server:
            context, page = await new_page(browser, reduced_motion=MOVING)
            results.append(await PARTS[name](page, server, minutes))
            await context.close()
    return all(results)


async def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without one")
    parser.add_argument("--minutes", type=float, default=10, help="how long the 50 answers of `heap` take (10)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        print(f"Chromium {browser.version}")
        return 0 if await run(browser, options.parts or list(PARTS), options.minutes) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
