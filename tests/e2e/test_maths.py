"""Formulas in answers: MathML that is made of elements, loaded with the first formula, and the source until then."""

import json

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import asking, begin, last_answer, new_page, until_true
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = r"""The roots of $ax^2 + bx + c = 0$ cost $5 and $10, and `$x$` is code:

$$
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
- \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}
$$

הנוסחה \(y_1\) כאן.

Wrong: $\frac{a$.
"""
HOSTILE = r"""$\href{javascript:document.title='owned'}{x}$ $\includegraphics{https://evil.example/p.png}$
$\htmlStyle{position:fixed;inset:0}{x}$ $\htmlId{app}{x}$ $\text{<img src=x onerror=alert(1)>}$
$\def\a{\a\a}\a$ $</code><script>document.title='owned'</script>$ $\rule{9999em}{9999em}$

$$</math><img src=x onerror=alert(1)>$$

"""
ATTRIBUTES = "all => [...new Set(all.flatMap(each => each.getAttributeNames()))]"
NAMES = "all => [...new Set(all.map(each => each.localName))]"
# The greatest depth that is shown, of what is costly to lay out.
DEEP = "\n\n".join(
    f"$${opening * 16}x{closing * 16}$$"
    for opening, closing in (
        (r"\frac{", "}{y}"),
        (r"\sqrt{", "}"),
        (r"\left(", r"\right)"),
        (r"\underbrace{", "}_z"),
        (r"\begin{matrix}", r"\end{matrix}"),
    )
)


@pytest.mark.own_page
async def test_formulas_are_shown_as_such_and_copied_as_their_source(page: Page, server: ScriptedServer) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    stream = await begin(page, server)
    await stream.answer(ANSWER, size=7)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    prose = last_answer(page).locator(".prose")
    await expect(prose.locator("math")).to_have_count(3)
    await expect(prose.locator(".maths.display mfrac msqrt")).to_have_count(1)
    await expect(prose.locator("code.formula")).to_have_text([r"$\frac{a$"])
    await expect(prose.locator("code:not(.formula)")).to_have_text("$x$")
    await expect(prose).to_contain_text("cost $5 and $10")
    assert await prose.locator("*").evaluate_all(ATTRIBUTES + ".includes('style')") is False
    right_to_left = prose.locator("p", has_text="הנוסחה")
    style = "each => getComputedStyle(each).direction"
    assert await right_to_left.evaluate(style) == "rtl"
    assert await right_to_left.locator("math").evaluate(style) == "ltr"
    assert await violations(page) == []
    await page.get_by_role("button", name="Copy answer").click()
    await until_true(page, f"navigator.clipboard.readText().then((text) => text === {json.dumps(ANSWER)})")


async def test_a_formula_is_its_source_until_it_is_complete_and_then_stays(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    prose = last_answer(page).locator(".prose")
    await stream.delta("Take $x_1$ and\n\n$$\na_1 + b_1")
    await expect(prose.locator("math")).to_have_count(1)
    await expect(prose.locator("code.formula")).to_have_text("$$\na_1 + b_1")
    first = await prose.locator("math").element_handle()
    await stream.delta("\n$$\n\nThe ")
    await expect(prose.locator(".maths.display math")).to_have_count(1)
    await stream.delta("end.")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    assert await page.evaluate("first => first.isConnected", first)
    await expect(prose.locator("code.formula")).to_have_count(0)


async def test_the_library_is_loaded_with_the_first_formula(page: Page, server: ScriptedServer) -> None:
    with asking(page) as asked:
        stream = await begin(page, server)
        await stream.delta("It costs $5 and $10, `$x$`.\n\n")
        await expect(last_answer(page).locator("code")).to_have_text("$x$")
    assert not [url for url in asked if "temml" in url or "maths" in url or "math-" in url]
    async with page.expect_request("**/temml-*"), page.expect_request_finished(lambda one: "stix-two-math" in one.url):
        await stream.delta("But $x$ ")
    await stream.done()
    await expect(last_answer(page).locator("math")).to_have_count(1)
    await until_true(page, "document.fonts.check('1em \"STIX Two Math\"')")


@pytest.mark.own_page
async def test_without_the_font_formulas_are_shown_in_another(page: Page, server: ScriptedServer) -> None:
    await page.route("**/stix-two-math-*", lambda route: route.abort())
    stream = await begin(page, server)
    async with page.expect_event("requestfailed"):
        await stream.answer("So $x$ it is.")
    await expect(last_answer(page).locator("math")).to_have_text("x")


@pytest.mark.own_page
async def test_without_the_library_formulas_stay_as_their_sources(page: Page, server: ScriptedServer) -> None:
    await page.route("**/temml-*", lambda route: route.abort())
    stream = await begin(page, server)
    async with page.expect_event("requestfailed"):
        await stream.answer("So $x$ it is.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator("code.formula")).to_have_text("$x$")


@pytest.mark.own_page
@pytest.mark.parametrize("name", ["maths.js", "tex.js", "temml-*.mjs"])
async def test_formulas_that_could_not_be_shown_are_tried_again_with_the_next(
    page: Page, server: ScriptedServer, name: str
) -> None:
    await page.route(f"**/{name}*", lambda route: route.abort())
    stream = await begin(page, server)
    async with page.expect_event("requestfailed"):
        await stream.delta("So $x$ it is.\n\n")
    await page.unroute_all()
    async with page.expect_request(f"**/{name}?*"):
        await stream.answer("And $y$ too.", size=12)
    await expect(last_answer(page).locator("math").last).to_have_text("y")


async def test_hostile_formulas_are_inert(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.answer(HOSTILE + "And $y$.", size=11)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    prose = last_answer(page).locator(".prose")
    await expect(prose.locator("math").last).to_be_visible()
    elements = set(await prose.locator("*").evaluate_all(NAMES))
    assert elements <= {"div", "p", "br", "code", "span", "math", "mrow", "mi", "mo", "mn", "msup", "mtext", "mspace"}
    attributes = set(await prose.locator("*").evaluate_all(ATTRIBUTES))
    of_lengths = {"width", "height", "lspace", "rspace"}
    assert attributes <= {"class", "dir", "tabindex", "display", "stretchy", "fence", "form"} | of_lengths
    assert (await page.title()).endswith("Quire")
    box = await prose.bounding_box()
    assert box is not None and box["height"] < 2000


async def test_deep_formulas_are_laid_out(browser: Browser, server: ScriptedServer) -> None:
    """A layout whose cost doubles with each level would not end within the time of the test."""
    context, page = await new_page(browser)
    stream = await begin(page, server)
    await stream.answer(DEEP, size=len(DEEP))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator("math")).to_have_count(5)
    await context.close()
