"""An evening's conversation with SmolLM2 on `quire serve smollm2`: 40 turns with edits, branches, repeated answers,
reloads, and a context that is full several times. After each turn the page is checked; pictures are in QUIRE_SHOTS.

Run by hand, after `make real-model`: `pytest -m real tests/e2e/test_evening.py` (5 to 10 minutes).
"""

import sys
from asyncio import create_subprocess_exec, create_task, get_running_loop, wait_for
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.e2e.browsing import PageWatch, ask, last_answer, new_page, stored, until_at_end
from tests.e2e.real_server import listen
from tests.e2e.shots import Shots

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

CONTEXT = 1280  # tokens; 40 turns fill it several times
MAX_TOKENS = 72
TURNS = 40
START_S = 120
ANSWER_MS = 120_000
QUESTIONS = (
    "Hello! What shall we cook tonight with rice, eggs and two carrots?",
    "How long does the rice take?",
    "Write the steps as a numbered list.",
    "Make a table of the ingredients and how much of each I need for two people.",
    "And for five people?",
    "Write a Python function that scales a recipe.",
    "What does that function do when the number of people is zero?",
    "Which spices would you add?",
    "Tell me a short story about a cook who lost his salt.",
    "Give the cook a name, and tell me how it ends.",
    "What is the capital of Portugal, and what do people eat there?",
    "Translate `good evening` into French and Spanish.",
    "Explain in two sentences why onions make us cry.",
)
REVERSED = "You are brief. Answer in one sentence."


@dataclass
class Evening:
    """One conversation on a page, and what has been done in it."""

    page: Page
    watch: PageWatch
    num_dropped: int = 0
    num_summaries: int = 0

    async def settle(self) -> None:
        """Wait for the end of the answer that has begun."""
        await expect(self.page.get_by_role("button", name="Stop")).to_be_hidden(timeout=ANSWER_MS)
        await expect(last_answer(self.page)).to_have_attribute("data-state", "done", timeout=ANSWER_MS)

    async def ask(self, turn: int) -> None:
        """The next question, after room was made if the page offers it."""
        choice = self.page.locator(".context-choice")
        if await choice.is_visible():
            if self.num_dropped <= self.num_summaries:
                await choice.get_by_role("button", name="Drop").click()
                self.num_dropped += 1
            else:
                await choice.get_by_role("button", name="Summarize").click()
                self.num_summaries += 1
                await expect(self.page.locator(".summary-ask")).to_have_count(self.num_summaries)
                await self.settle()
            await expect(choice).to_be_hidden()
        question = QUESTIONS[turn % len(QUESTIONS)]
        await ask(self.page, question)
        await expect(self.page.locator(".question > p").last).to_have_text(question)
        await self.settle()

    async def edit_question(self) -> None:
        """The last question in other words, on a branch of its own."""
        await self.page.get_by_role("button", name="Edit question").last.click()
        await self.page.get_by_label("Edit your question").fill(REVERSED)
        await self.page.keyboard.press("Enter")
        await expect(self.page.locator(".question").last.locator(".branch-number")).to_have_text("2/2")
        await self.settle()

    async def answer_again(self) -> None:
        """Another answer, and back to the first one."""
        first = await last_answer(self.page).locator(".prose").inner_text()
        await self.page.get_by_role("button", name="Answer again").last.click()
        await expect(last_answer(self.page)).not_to_have_attribute("data-state", "done")
        await self.settle()
        await expect(last_answer(self.page).locator(".branch-number")).to_have_text("2/2")
        await last_answer(self.page).get_by_role("button", name="Previous branch").click()
        await expect(last_answer(self.page).locator(".prose")).to_have_text(first, use_inner_text=True)

    async def edit_answer(self) -> None:
        """An answer in the user's words."""
        await last_answer(self.page).get_by_role("button", name="Edit answer").click()
        await self.page.get_by_label("Edit the answer").fill("We eat at *eight*.")
        await self.page.keyboard.press("Control+Enter")
        await expect(last_answer(self.page).locator(".prose em")).to_have_text("eight")

    async def reload(self) -> None:
        """Nothing is lost by a reload."""
        articles = self.page.locator("article :is(.prose, p[dir])")
        before = await articles.all_text_contents()  # also of those that are out of view, and not laid out
        marks = await self.page.locator(".cut").all_inner_texts()
        await self.page.reload()
        await expect(self.page.locator(".dot")).to_have_attribute("data-phase", "ready")
        await expect(articles).to_have_text(before)
        await expect(self.page.locator(".cut")).to_have_text(marks, use_inner_text=True)

    async def check(self) -> None:
        """The page is at its end and shows what is stored; the meter shows the server's count; nothing was logged."""
        assert self.watch.problems == []
        await until_at_end(self.page.locator(".log"))
        path = await self.path()
        await expect(self.page.locator("article")).to_have_count(len(path))
        questions = [message["text"] for message in path if message["role"] == "user" and "keeps" not in message]
        await expect(self.page.locator(".question > p")).to_have_text(questions)
        usage = path[-1].get("usage")
        if usage and not any("keeps" in message for message in path):
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            await expect(self.page.locator(".context")).to_contain_text(f"{total:,} of {CONTEXT:,} tokens")

    async def path(self) -> list[dict[str, Any]]:
        """The stored messages of the shown branch."""
        messages = {record["id"]: record for record in await stored(self.page)}
        (conversation,) = await stored(self.page, "conversations")
        found, next_id = [], conversation["head"]
        while next_id is not None:
            found.append(messages[next_id])
            next_id = messages[next_id]["parent"]
        return found[::-1]


@pytest_asyncio.fixture(loop_scope="session")
async def smollm2() -> AsyncIterator[str]:
    """The address of `quire serve smollm2`."""
    command = (sys.executable, "-m", "app", "serve", "smollm2", "--port", "0", "--max-model-len", str(CONTEXT))
    process = await create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    assert process.stdout
    url = get_running_loop().create_future()
    reader = create_task(listen(process.stdout, url))
    try:
        yield await wait_for(url, START_S)
    finally:
        process.kill()
        await reader
        await process.wait()


async def test_forty_turns_keep_the_page_and_the_conversation_whole(
    browser: Browser, smollm2: str, shots: Shots
) -> None:
    context, page = await new_page(browser)
    evening = Evening(page, PageWatch(page))
    await page.goto(smollm2)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready", timeout=START_S * 1000)
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("Max tokens").fill(str(MAX_TOKENS))
    await page.keyboard.press("Escape")
    for turn in range(TURNS):
        await evening.ask(turn)
        await evening.check()
        for is_due, act in (
            (turn % 7 == 3, evening.edit_question),
            (turn % 7 == 5, evening.answer_again),
            (turn % 13 == 8, evening.edit_answer),
            (turn % 10 == 9, evening.reload),
        ):
            if is_due:
                await act()
                await evening.check()
        if turn % 5 == 4:
            await shots.take(page, f"evening-{turn + 1:02}")
    assert evening.num_dropped and evening.num_summaries, evening
    await context.close()
