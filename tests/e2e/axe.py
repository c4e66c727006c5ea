"""Checks a page with axe-core: the rules of WCAG 2.2 A and AA, and axe's best practices."""

from functools import cache
from pathlib import Path

from playwright.async_api import Page

AXE = Path(__file__).parent.parent.parent / "node_modules" / "axe-core" / "axe.min.js"
# Frames have an origin of their own: axe cannot look into them, and would say so on the console.
RUN = """async () => (await axe.run(document, { resultTypes: ["violations"], iframes: false })).violations.flatMap(
  ({ id, help, nodes }) => nodes.map(({ target, any }) => `${id}: ${help}: ${target} ${any[0]?.message ?? ""}`))"""


@cache
def _source() -> str:
    assert AXE.is_file(), "axe-core is missing; `make dev` brings it"
    return AXE.read_text()


async def violations(page: Page) -> list[str]:
    """What axe finds wrong with the page as it is now, one line for each rule and element."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_source())
    # Colours that are on their way to others have no contrast to check.
    await page.evaluate(
        "document.getAnimations().forEach(each => each.effect.getTiming().iterations === 1 && each.finish())"
    )
    found: list[str] = await page.evaluate(RUN)
    return found
