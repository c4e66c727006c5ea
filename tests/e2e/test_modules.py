"""The JavaScript modules of the page, called in the browser."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.e2e.browsing import new_page
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Pieces whose meaning depends on what comes before and after them.
PIECES = [
    *("word ", "two words", "\n", "\n\n", "  ", "    ", "\t", "- ", "* ", "1. ", "2. ", "> ", "# ", "---", "==="),
    *("```", "```js\n", "~~~\n", "`", "**", "_", "|", "| a | b |\n", "|---|---|\n", "[x]", "<div>", "\\"),
    *("![i](j)", "[l](https://e.org)", "&amp;", "&", "- [ ] ", "- [x] ", "\n\n\n", "http://e.org ", "é", "🧵"),
    *("$", "$$", "$$\n", "$x_1$", "\\(", "\\)", "\\[", "\\]\n", "\\frac12", "a_b*c"),
]

# Renders each document piece by piece and at once, and returns both results.
STREAM_IN_PIECES = """async (documents) => {
  const { MarkdownView } = await import("/static/reading/markdown.js");
  const html = (blocks) => blocks.map((block) => block.innerHTML).join("\\n");
  return documents.map((pieces) => {
    const [streamed, complete] = [document.createElement("div"), document.createElement("div")];
    const view = new MarkdownView(streamed);
    let text = "";
    let closed = [];
    let hasReplaced = false;
    for (const piece of pieces) {
      text += piece;
      view.stream(text);
      hasReplaced ||= closed.some(([block, node], i) => streamed.children[i] !== block || block.firstChild !== node);
      closed = [...streamed.children].slice(0, -1).map((block) => [block, block.firstChild]);
    }
    const early = html(closed.map(([block]) => block));
    view.finish(text);
    new MarkdownView(complete).finish(text);
    const late = html([...complete.children].slice(0, closed.length));
    const [inPieces, atOnce] = [html([...streamed.children]), html([...complete.children])];
    return { text, streamed: inPieces, complete: atOnce, early, late, hasReplaced };
  });
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """One open page for all tests of this file; they leave nothing on it."""
    async with ScriptedServer().running() as server:
        context, page = await new_page(browser)
        await page.goto(server.url)
        yield page
        await context.close()


def random_document(seed: int) -> list[str]:
    """Between 1 and 40 pieces of Markdown without definitions, in the steps in which they arrive."""
    source = random.Random(seed)
    return source.choices(PIECES, k=source.randint(1, 40))


async def test_markdown_renders_the_same_for_any_split_and_closed_blocks_stay(page: Page) -> None:
    results = await page.evaluate(STREAM_IN_PIECES, [random_document(seed) for seed in range(300)])
    for result in results:
        assert result["streamed"] == result["complete"], result["text"]
        assert result["early"] == result["late"], result["text"]
        assert not result["hasReplaced"], result["text"]


async def test_a_link_definition_at_the_end_applies_to_earlier_blocks(page: Page) -> None:
    pieces = ["See [the", " page][p].\n\nNext", " paragraph.\n\n", "[p]: https://example.org\n"]
    (result,) = await page.evaluate(STREAM_IN_PIECES, [pieces])
    assert 'href="https://example.org"' in result["streamed"]
    assert result["streamed"] == result["complete"]


@pytest.mark.parametrize(
    ("tail", "completed"),
    [
        ("plain", "plain"),
        ("a **bold", "a **bold**"),
        ("a **bold** and", "a **bold** and"),
        ("run `quire", "run `quire`"),
        ("`a**b", "`a**b`"),
        ("```py\nx = `", "```py\nx = `"),
        ("done **one**\n\nthen `two", "done **one**\n\nthen `two`"),
        ("a **", "a **"),
    ],
)
async def test_open_marks_of_the_tail_are_closed_for_display(page: Page, tail: str, completed: str) -> None:
    complete = "async (tail) => (await import('/static/reading/blocks.js')).completeTail(tail)"
    assert await page.evaluate(complete, tail) == completed


async def test_times_count_from_sending_and_the_rate_from_the_first_token(page: Page) -> None:
    figures: list[dict[str, Any]] = await page.evaluate(
        """async () => {
          const { Stopwatch } = await import("/static/tree/figures.js");
          const watch = new Stopwatch(1000);
          const seen = [watch.read(1200)];
          watch.add(3, 1500);
          seen.push(watch.read(1600));
          watch.add(10, 1700);
          seen.push(watch.read(2000));
          watch.stop(2500);
          seen.push(watch.read(9000));
          return seen;
        }"""
    )
    assert figures == [
        {"tokens": 0, "firstTokenMs": None, "waitedMs": 200, "rate": None},
        {"tokens": 3, "firstTokenMs": 500, "waitedMs": 500, "rate": None},
        {"tokens": 13, "firstTokenMs": 500, "waitedMs": 500, "rate": 20},
        {"tokens": 13, "firstTokenMs": 500, "waitedMs": 500, "rate": 10},
    ]


@pytest.mark.parametrize(
    ("module", "call", "text"),
    [
        ("figures", "formatDuration(0.141)", "0.14 ms"),
        ("figures", "formatDuration(42.4)", "42 ms"),
        ("figures", "formatDuration(314)", "0.31 s"),
        ("figures", "formatDuration(4249)", "4.2 s"),
        ("figures", "formatRate(7.26)", "7.3"),
        ("figures", "formatRate(213.4)", "213"),
    ],
)
async def test_figures_are_rounded(page: Page, module: str, call: str, text: str) -> None:
    assert await page.evaluate(f"async () => (await import('/static/tree/{module}.js')).{call}") == text
