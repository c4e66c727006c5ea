"""Opens pages, asks questions on them, and records what a page must not do."""

from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

from tests.e2e.scripted import ScriptedServer, Stream

DESKTOP = {"width": 1280, "height": 800}
TIMEOUT_MS = 60_000  # a busy machine paints late
REPORT_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""


class PageWatch:
    """Records what a page must not do: log an error, throw, violate its policy, or request another host."""

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Chromium itself logs each 401 and 503, which the page expects.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    async def check(self, page: Page, origin: str) -> None:
        """Fail if the page did any of these."""
        assert self.problems == []
        assert await page.evaluate("violations") == []
        foreign = [url for url in self.requests if not url.startswith((origin, "data:"))]
        assert foreign == []


async def new_page(browser: Browser, **options: Any) -> tuple[BrowserContext, Page]:
    """Open a page in a context of its own; it records violations of its policy."""
    context = await browser.new_context(**({"viewport": DESKTOP} | options))
    page = await context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    await page.add_init_script(REPORT_VIOLATIONS)
    return context, page


async def ask(page: Page, question: str) -> None:
    """Type a question and send it with Enter."""
    field = page.get_by_label("Your question")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await field.fill(question)
    await field.press("Enter")


async def begin(page: Page, server: ScriptedServer, question: str = "What is Quire?") -> Stream:
    """Open the page, ask, and return the stream, which has no frame yet."""
    await page.goto(server.url)
    await ask(page, question)
    return await server.next_stream()


def last_answer(page: Page) -> Locator:
    """The newest answer of the conversation."""
    return page.locator(".answer").last
