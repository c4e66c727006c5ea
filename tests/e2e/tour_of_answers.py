"""A tour through the ways to look at an answer: token by token, and beside others."""

from dataclasses import dataclass

from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, last_answer
from tests.e2e.scripted import ScriptedServer
from tests.e2e.tour import Look

TOKENS = [
    *[("A", 0.93), (" qu", 0.99), ("ire", 1.0), (" is", 0.97), (" a", 0.76), (" **", 0.42), ("gathering", 0.06)],
    *[("**", 0.99), (" of", 1.0), (" sheets", 0.31), (",", 0.22), (" folded", 0.81), (" once", 0.08), (".", 0.64)],
    *[("\n\n", 0.44), ("Several", 0.18), (" make", 0.46), (" a", 0.9), (" book", 0.83), (".", 0.99)],
]
SIDES = [
    "A **quire** is a gathering of sheets that are folded once and sewn together through the fold.\n\n- four sheets\n"
    "- sixteen pages",
    "In a workshop of the Middle Ages it was",
    "For printers it is a 25th part of a ream: 24 or 25 sheets of one size.",
]


@dataclass(frozen=True, slots=True)
class TourOfAnswers:
    """Leads `page` from state to state; `look` is called with the name of each."""

    page: Page
    server: ScriptedServer
    look: Look

    async def probabilities(self) -> None:
        """An answer token by token, and what the model might have written in the place of one."""
        page = self.page
        await page.get_by_role("button", name="New chat").click()
        await page.get_by_role("button", name="Settings", exact=True).click()
        await page.get_by_label("Token probabilities").select_option("on")
        await page.keyboard.press("Escape")
        await ask(page, "What is a quire?")
        stream = await self.server.next_stream()
        for text, probability in TOKENS:
            await stream.token(text, probability, **{" pile": 0.21, " set": 0.08, " stack": 0.02})
        await stream.done()
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        token = last_answer(page).get_by_text("gathering")
        # A click that has to scroll first may be there before the event of that, with which the tooltip goes.
        await token.scroll_into_view_if_needed()
        await token.click()
        await expect(page.get_by_role("tooltip")).to_be_visible()
        await self.look("probabilities")
        await last_answer(page).get_by_role("button", name="Show formatted").click()
        await expect(last_answer(page).locator(".prose strong")).to_have_text("gathering")
        await self.look("probabilities-formatted")

    async def sides(self) -> None:
        """Three answers side by side: while they are written, when one has failed, and one that was chosen."""
        page = self.page
        await page.get_by_role("button", name="New chat").click()
        await page.get_by_role("button", name="Settings", exact=True).click()
        await page.get_by_label("Answers at once").fill("3")
        await page.keyboard.press("Escape")
        await ask(page, "What is a quire?")
        stream = await self.server.next_stream()
        for number, text in enumerate(SIDES):
            await stream.choice(number, text, ends="" if number == 1 else "stop")
        await expect(page.locator(".sides .answer")).to_have_count(3)
        await expect(last_answer(page)).to_contain_text("printers")
        await self.look("sides-streaming")
        await stream.error("engine_error", 500, "The engine has failed; try again.")
        await expect(page.locator(".sides").get_by_role("alert")).to_be_visible()
        await self.look("sides")
        await page.get_by_role("button", name="Go on with this one").last.click()
        await expect(last_answer(page).get_by_role("group", name="Branch 3 of 3")).to_be_visible()
        await self.look("sides-chosen")
