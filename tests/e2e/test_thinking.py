"""What an answer has besides its text: the reasoning with its time, and calls of tools as they arrive."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import begin, last_answer, stored_answer
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The page's clock, which the test can put forward.
CLOCK = """
const now = performance.now.bind(performance);
window.ahead = 0;
performance.now = () => now() + ahead;
"""


@pytest.mark.own_page
async def test_the_time_of_the_reasoning_ends_with_its_last_token(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script(CLOCK)
    stream = await begin(page, server)
    await stream.send("delta", i=0, n=1, k=1, x="", r="The user asks ")
    reasoning = last_answer(page).locator(".reasoning summary")
    await expect(reasoning).to_have_text("Thinking")
    await page.evaluate("ahead += 400_000")
    await stream.send("delta", i=0, n=2, k=1, x="", r="about **this**.")
    await expect(reasoning).to_contain_text("Thinking for 4")
    stream.sent = 2
    await stream.delta("An answer")
    await expect(reasoning).to_contain_text("Thought for 4")
    thought = await reasoning.text_content()
    await page.evaluate("ahead += 400_000")
    await stream.delta(" that takes longer.")
    await stream.done()
    milliseconds = (await stored_answer(page))["reasoningMs"]
    assert 400_000 <= milliseconds < 800_000
    assert thought == f"Thought for {milliseconds / 1000:.1f} s"
    await expect(reasoning).to_have_text(thought)
    await reasoning.click()
    await expect(last_answer(page).locator(".reasoning p")).to_have_text("The user asks about **this**.")
    await page.reload()
    await expect(reasoning).to_have_text(thought)


async def test_calls_of_tools_are_shown_while_they_arrive(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    calls = last_answer(page).locator(".tools li")
    await stream.send("delta", i=0, n=1, k=1, x="", tool=[{"k": 0, "id": "one", "name": "search"}])
    await expect(calls.locator("summary")).to_have_text(["Calls search"])
    await calls.locator("summary").click()
    await stream.send("delta", i=0, n=2, k=1, x="", tool=[{"k": 0, "a": '{"words":'}])
    await expect(calls.locator("pre")).to_have_text('{"words":')
    both = [{"k": 0, "a": '["a"]}'}, {"k": 1, "id": "two", "name": "<b>time</b>"}, {"k": 1, "a": "{}"}]
    await stream.send("delta", i=0, n=3, k=4, x="", tool=both)
    await expect(calls.locator("summary")).to_have_text(["Calls search", "Calls <b>time</b>"])
    assert await calls.locator("pre").first.text_content() == '{\n  "words": [\n    "a"\n  ]\n}'
    stream.sent = 6
    await stream.done("tool_calls")
    await expect(last_answer(page).locator(".ending")).to_have_text("The answer calls tools; this page runs none.")
    stored = await stored_answer(page)
    assert [tool["arguments"] for tool in stored["tools"]] == ['{"words":["a"]}', "{}"]
    await page.reload()
    await expect(calls).to_have_count(2)
