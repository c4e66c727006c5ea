"""Opens pages, asks questions on them, and records what a page must not do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Frame, Locator, Page, Request, expect

from tests.e2e.elsewhere import elsewhere
from tests.e2e.scripted import ScriptedServer, Stream

DESKTOP = {"width": 1280, "height": 800}
TIMEOUT_MS = 60_000  # a busy machine paints late
LONGEST_PAUSE_S = 0.25  # between two looks at what a page has stored or shows
MOVING, STILL = "no-preference", "reduce"  # whether a page may move what it shows
REPORT_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""
# What a document, also one in a frame, has loaded from another origin than its own: it says so in the console at once,
# and whoever asks for it at the end of a test finds what it has not said yet.
REPORT_FOREIGN = """
performance.setResourceTimingBufferSize(100_000);
window.foreign = (entries = performance.getEntriesByType("resource")) => {
  const { origin } = new URL(location.protocol === "about:" ? location.ancestorOrigins[0] : location.href);
  const names = entries.map(({ name }) => name);
  return names.filter((name) => !name.startsWith(`${origin}/`) && !name.startsWith("data:"));
};
new PerformanceObserver((list) => foreign(list.getEntries()).forEach((name) => console.error(`loaded ${name}`)))
  .observe({ type: "resource" });
"""
# The page's messages at the edge of the window stay until they are dismissed: by the time that a busy machine has
# pressed a button of one, its 10 seconds may be over.
KEEP_TOASTS = """
const { setTimeout: set } = window;
window.setTimeout = (run, ms, ...rest) => (ms === 10_000 ? 0 : set(run, ms, ...rest));
"""
# The records of one object store of the page's database, oldest first.
STORED = """async (store) => {
  const result = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  if (!(await indexedDB.databases()).some(({ name }) => name === "quire")) return [];
  const db = await result(indexedDB.open("quire"));
  const records = await result(db.transaction(store).objectStore(store).getAll());
  db.close();
  // A question and its answer are made in the same millisecond.
  return records.sort((a, b) => a.createdAt - b.createdAt || (a.role === "assistant") - (b.role === "assistant"));
}"""

# The style sheets are the last that the page loads when it has nothing else to do.
IS_COMPLETE = """["code_blocks", "context", "parts", "sidebar", "window"].every((name) =>
  [...document.styleSheets].some(({ href }) => href?.endsWith(`/${name}.css`)))"""

# What Chromium itself logs of each 401 and 503, and of a server that is not there; the page expects both.
LOGGED_BY_CHROMIUM = ("Failed to load resource", "net::ERR_CONNECTION_REFUSED")


class PageWatch:
    """Records what a page must not do: log an error, throw, violate its policy, or request another host.

    Playwright would tell of each request, which takes a sixth of the processor time of opening the page; the documents,
    of which it tells, know what they have loaded, and what leaves this machine comes to a proxy.
    """

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self.addresses: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("framenavigated", self._on_navigated)

    def end(self, page: Page) -> None:
        """Record no more."""
        page.remove_listener("console", self._on_console)
        page.remove_listener("pageerror", self._on_error)
        page.remove_listener("framenavigated", self._on_navigated)

    def _on_console(self, message: ConsoleMessage) -> None:
        is_expected = any(text in message.text for text in LOGGED_BY_CHROMIUM)
        if message.type in ("error", "warning") and not is_expected:
            self.problems.append(f"{message.type}: {message.text}")

    def _on_error(self, error: Error) -> None:
        self.problems.append(f"thrown: {error}")

    def _on_navigated(self, frame: Frame) -> None:
        self.addresses.append(frame.url)

    async def check(self, page: Page, origin: str) -> None:
        """Fail if the page did any of these."""
        assert self.problems == [], self.problems
        violations, loaded = await page.evaluate("[violations, foreign()]")
        assert violations == [], violations
        for frame in page.main_frame.child_frames:
            loaded += await frame.evaluate("foreign()")
        assert loaded == [], loaded
        allowed = origin, "data:", "about:", "chrome-error:"  # what Chromium shows where a document was not loaded
        elsewhere_at = [url for url in self.addresses if not url.startswith(allowed)]
        assert elsewhere_at == [], elsewhere_at
        asked = elsewhere().asked()
        assert asked == [], asked


@contextmanager
def asking(page: Page) -> Iterator[list[str]]:
    """Record what the page asks for in the time of a block; the pages of later tests are opened without that."""
    asked: list[str] = []

    def record(request: Request) -> None:
        asked.append(request.url)

    page.on("request", record)
    yield asked
    page.remove_listener("request", record)


async def new_page(browser: Browser, **options: Any) -> tuple[BrowserContext, Page]:
    """Open a page in a context of its own; it records violations of its policy.

    What it shows stands still unless `reduced_motion` says otherwise: the pen that blinks while an answer is awaited
    takes 0.4 s of processor time a second.
    """
    usual = {"viewport": DESKTOP, "reduced_motion": STILL, "proxy": elsewhere().proxy}
    context = await browser.new_context(**(usual | options))
    page = await context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    await page.add_init_script(REPORT_VIOLATIONS)
    await page.add_init_script(REPORT_FOREIGN)
    await page.add_init_script(KEEP_TOASTS)
    return context, page


async def ask(page: Page, question: str) -> None:
    """Type a question and send it with Ctrl + Enter, which does so on a phone, too."""
    field = page.get_by_label("Your question")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await field.fill(question)
    await field.press("Control+Enter")


async def begin(page: Page, server: ScriptedServer, question: str = "What is Quire?") -> Stream:
    """Open the page, ask, and return the stream, which has no frame yet."""
    await page.goto(server.url)
    await ask(page, question)
    return await server.next_stream()


def last_answer(page: Page) -> Locator:
    """The newest answer of the conversation."""
    return page.locator(".answer").last


async def stored(page: Page, store: str = "messages") -> list[dict[str, Any]]:
    """The records that the page has stored, oldest first."""
    records: list[dict[str, Any]] = await page.evaluate(STORED, store)
    return records


async def until_stored(page: Page, store: str, count: int) -> None:
    """Wait until so many records are stored; the page stores what it shows a little later."""

    async def are_stored() -> bool:
        return len(await stored(page, store)) == count

    await _until(are_stored)


async def until_last(page: Page, store: str, **fields: Any) -> None:
    """Wait until the last record of a store has these fields, and objects at least these: a crash does not lose it."""

    async def is_last() -> bool:
        records = await stored(page, store)
        return bool(records) and _has(records[-1], fields)

    await _until(is_last)


def _has(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    return isinstance(value, dict) and all(_has(value.get(name), each) for name, each in wanted.items())


async def until_true(source: Page | Locator, expression: str) -> None:
    """Wait until a script of the page, or of an element, is true.

    Playwright's own wait evaluates it in the page, from the second time on, which the page's policy forbids.
    """
    await _until(lambda: source.evaluate(expression))


async def until_complete(page: Page) -> None:
    """Wait until the page has loaded what it needs without its server, too."""
    await until_true(page, IS_COMPLETE)


async def until_at_end(log: Locator) -> None:
    """Wait until the end of the log is in view, as it is with the frame that follows what was rendered."""
    await until_true(log, "log => log.scrollHeight - log.scrollTop - log.clientHeight < 2")


async def stored_answer(page: Page) -> dict[str, Any]:
    """The last stored message, once it has ended; this needs no painting."""

    async def ended() -> dict[str, Any] | None:
        records = await stored(page)
        return records[-1] if records and records[-1].get("state") not in (None, "waiting", "streaming") else None

    answer: dict[str, Any] = await _until(ended)
    return answer


async def _until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Look until there is something, and return it: less and less often, since each look takes 6 ms of a core."""
    pause_s = 0.02
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while not (found := await look()):
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
    return found
