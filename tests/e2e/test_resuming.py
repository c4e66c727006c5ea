"""An answer outlives its connection, its page and its tab: it goes on where it was, and nothing of it comes twice."""

import pytest
from playwright.async_api import Browser, Page, expect

from app.api.http.context import StreamTimers
from tests.api.serving import make_app, serving, until
from tests.client.relay import Relay
from tests.e2e.browsing import (
    PageWatch,
    ask,
    begin,
    last_answer,
    new_page,
    stored,
    stored_answer,
    until_complete,
    until_last,
)
from tests.e2e.scripted import ScriptedServer, Stream
from tests.e2e.test_blocked_websockets import BLOCKED
from tests.fakes import FakeEngine, Script

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAITS = "goes on when the server is back, if it has kept the answer"
# The time that a ping may take after a sleep or a change of network is over at once.
SOON = """const { setTimeout: wait } = window;
window.setTimeout = (run, ms) => wait(run, ms === 5000 ? 50 : ms);"""


@pytest.fixture
def server(server: ScriptedServer) -> ScriptedServer:
    """A server that keeps answers."""
    server.keeps = True
    return server


async def tell(page: Page, server: ScriptedServer, question: str = "One?") -> Stream:
    """Ask, and show the first two of three tokens of the answer."""
    stream = await begin(page, server, question)
    await stream.delta("Once")
    await stream.delta(" upon")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    return stream


async def go_on(page: Page, server: ScriptedServer, first: Stream) -> None:
    """Let the page come back for the third token, and get the second one again."""
    rest = await server.next_stream()
    assert (rest.frame["t"], rest.frame["stream"], rest.frame["after"]) == ("resume", "s" + first.id, [2])
    await rest.send("delta", i=0, n=2, k=1, x=" upon")
    await rest.delta(" a time.")
    await rest.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon a time.")
    await expect(last_answer(page).locator(".tokens b")).to_have_text("3")
    assert (await stored_answer(page))["text"] == "Once upon a time."
    assert "position" not in await stored_answer(page)


@pytest.mark.parametrize("code", [1011, 1012, 4499])
async def test_an_answer_waits_for_the_next_connection(page: Page, server: ScriptedServer, code: int) -> None:
    stream = await tell(page, server)
    assert stream.frame["ttl_s"] == 300
    server.health = {"status": "loading", "progress": 0.5}
    await stream.drop(code)
    await expect(last_answer(page).locator(".standing")).to_have_text(WAITS)
    await expect(page.get_by_role("alert")).to_have_count(0)
    server.health = {"status": "ready", "progress": 1.0}
    await go_on(page, server, stream)
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_an_answer_goes_on_after_a_reload(page: Page, server: ScriptedServer) -> None:
    stream = await tell(page, server)
    await page.reload()
    await go_on(page, server, stream)
    assert not stream.cancelled.is_set()


async def test_an_answer_goes_on_in_a_tab_that_is_opened_again(page: Page, server: ScriptedServer) -> None:
    before = await page.context.new_page()
    stream = await tell(before, server)
    await until_last(before, "messages", text="Once upon", state="streaming")
    url = before.url
    await before.close()
    await page.goto(url)
    await go_on(page, server, stream)
    assert not stream.cancelled.is_set()


async def test_a_tab_goes_on_with_the_answer_that_a_closed_one_was_writing(page: Page, server: ScriptedServer) -> None:
    writer = await page.context.new_page()
    stream = await tell(writer, server)
    await until_last(writer, "messages", text="Once upon", state="streaming")
    await page.goto(writer.url)
    await expect(last_answer(page).locator(".standing")).to_have_text("being written in another tab")
    await writer.close()
    await go_on(page, server, stream)


async def test_two_tabs_that_write_one_answer_show_and_store_the_same(page: Page, server: ScriptedServer) -> None:
    """A tab that is asleep does not say that it writes, and goes on when it wakes."""
    asleep = await page.context.new_page()
    await asleep.add_init_script("BroadcastChannel.prototype.postMessage = () => {};")
    first = await tell(asleep, server)
    await until_last(asleep, "messages", text="Once upon", state="streaming")
    await page.goto(asleep.url)
    rest = await server.next_stream()
    await first.delta(" a")
    await rest.delta(" a time.", tokens=2)
    await rest.done()
    await first.delta(" time.")
    await first.done()
    for tab in (page, asleep):
        await expect(last_answer(tab)).to_have_attribute("data-state", "done")
        await expect(last_answer(tab).locator(".prose")).to_have_text("Once upon a time.")
    await until_last(page, "messages", text="Once upon a time.", state="done")
    assert len(await stored(page)) == 2


async def test_an_answer_goes_on_in_a_page_that_shows_another_conversation(page: Page, server: ScriptedServer) -> None:
    writer = await page.context.new_page()
    stream = await tell(writer, server)
    await until_last(writer, "messages", text="Once upon", state="streaming")
    await writer.close()
    await page.goto(server.url)
    rest = await server.next_stream()
    assert (rest.frame["stream"], rest.frame["after"]) == ("s" + stream.id, [2])
    await expect(page.locator(".answer")).to_have_count(0)
    await rest.delta(" a time.")
    await rest.done()
    await until_last(page, "messages", text="Once upon a time.", state="done")
    assert await page.evaluate("Object.keys(localStorage).filter((name) => name.startsWith('quire.open'))") == []


@pytest.mark.own_page
@pytest.mark.parametrize("event", ["online", "visibilitychange"])
async def test_a_connection_that_a_sleep_has_left_behind_is_given_up(
    page: Page, server: ScriptedServer, event: str
) -> None:
    await page.add_init_script(SOON)
    stream = await tell(page, server)
    server.is_silent = True
    await page.evaluate(f"document.dispatchEvent(new Event('{event}', {{ bubbles: true }}))")
    await until(lambda: len(server.hellos) == 2)
    server.is_silent = False
    await go_on(page, server, stream)


async def test_a_question_that_was_not_accepted_is_sent_again(page: Page, server: ScriptedServer) -> None:
    server.accepts = False
    first = await begin(page, server)
    server.accepts = True
    await first.drop(1011)
    again = await server.next_stream()
    assert again.frame == first.frame
    assert again.frame["idempotency_key"]
    await again.answer("Once.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once.")


async def test_a_question_that_was_not_accepted_when_its_page_ended_is_sent_again(
    page: Page, server: ScriptedServer
) -> None:
    server.accepts = False
    first = await begin(page, server)
    await until_last(page, "messages", state="waiting")
    server.accepts = True
    await page.reload()
    again = await server.next_stream()
    assert again.frame == first.frame
    await again.answer("Once.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once.")


async def test_a_question_that_ends_every_connection_is_not_sent_for_ever(page: Page, server: ScriptedServer) -> None:
    server.accepts = False
    await (await begin(page, server)).drop(1011)
    for _ in range(2):
        await (await server.next_stream()).drop(1011)
    await expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost")


async def test_an_answer_that_the_server_has_forgotten_stays_and_can_be_continued(
    page: Page, server: ScriptedServer
) -> None:
    stream = await tell(page, server)
    await stream.drop(1012)
    await (await server.next_stream()).error("stream_not_found", 404, "There is no such stream.")
    await expect(page.get_by_role("alert")).to_contain_text("The server no longer has the rest of this answer")
    await expect(page.get_by_role("alert")).to_contain_text("A server with the option --journal FILE keeps answers")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await page.reload()
    await expect(page.get_by_role("button", name="Try again")).to_be_visible()
    await page.get_by_role("button", name="Continue", exact=True).click()
    assert (await server.next_stream()).request["messages"][-1]["content"] == "Once upon"


async def test_an_answer_that_waits_can_be_stopped(page: Page, server: ScriptedServer) -> None:
    stream = await tell(page, server)
    server.health = {"status": "loading", "progress": 0.5}
    await stream.drop(1011)
    await expect(last_answer(page).locator(".standing")).to_have_text(WAITS)
    await page.keyboard.press("Escape")
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    server.health = {"status": "ready", "progress": 1.0}
    await until(lambda: server.deleted == ["s" + stream.id])
    assert server.streams.empty()


async def test_a_question_that_is_stopped_before_it_was_accepted_is_ended_with_the_next_connection(
    page: Page, server: ScriptedServer
) -> None:
    server.accepts = False
    first = await begin(page, server)
    server.health = {"status": "loading", "progress": 0.5}
    await first.drop(1011)
    await expect(last_answer(page).locator(".standing")).to_have_text("until the server is back")
    await page.keyboard.press("Escape")
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    await page.reload()
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    server.accepts = True
    server.health = {"status": "ready", "progress": 1.0}
    again = await server.next_stream()
    assert again.frame == first.frame
    await until(again.cancelled.is_set)
    await again.done("cancelled")
    await server.ping()
    await again.drop(1011)
    await until(lambda: len(server.hellos) == 3)
    await server.ping()
    assert server.streams.empty()


async def test_an_answer_with_too_many_readers_waits_until_one_of_them_has_gone(
    page: Page, server: ScriptedServer
) -> None:
    stream = await tell(page, server)
    server.is_crowded = True
    await stream.drop(1011)
    await expect(last_answer(page).locator(".standing")).to_have_text(
        "waiting to go on when fewer pages read this answer"
    )
    await expect(page.get_by_role("alert")).to_have_count(0)
    server.is_crowded = False
    await go_on(page, server, stream)


@pytest.mark.parametrize("websockets", ["", BLOCKED], ids=["websockets", "http"])
@pytest.mark.parametrize("is_accepted", [False, True], ids=["not accepted", "accepted"])
async def test_the_server_ends_what_is_stopped_while_it_cannot_hear(
    browser: Browser, websockets: str, is_accepted: bool
) -> None:
    """Nobody has noticed yet that the network is gone, or what was asked was not accepted: the stop is lost."""
    engine = FakeEngine(Script(answer=["word "] * 90), held=True)
    # Over HTTP the answer's name comes with its headers, before the first token with a heartbeat.
    timers = StreamTimers(waiting_s=0.2)
    async with serving(await make_app(engine, timers=timers)) as url, Relay(url).running() as relay:
        context, page = await new_page(browser)
        await page.add_init_script(websockets)
        await page.goto(relay.url)
        await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
        await until_complete(page)
        relay.is_mute = not is_accepted
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        if is_accepted:
            engine.step(5)
            await expect(last_answer(page).locator(".prose")).to_contain_text("word")
        relay.is_mute = relay.is_deaf = True
        await page.keyboard.press("Escape")
        await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
        assert engine.aborted == []
        relay.cut()
        relay.is_mute = relay.is_deaf = False
        await until(lambda: engine.aborted == [engine.requests[0].id])
        assert len(engine.requests) == 1
        await context.close()


async def test_a_deleted_conversation_ends_its_answer(page: Page, server: ScriptedServer) -> None:
    stream = await tell(page, server)
    await last_answer(page).locator("..").get_by_role("button", name="Delete").last.click()
    await until(stream.cancelled.is_set)


async def test_a_question_waits_for_the_answer_that_goes_on(page: Page, server: ScriptedServer) -> None:
    stream = await tell(page, server)
    await page.reload()
    rest = await server.next_stream()
    await ask(page, "Two?")
    await expect(page.locator(".queued")).to_contain_text("Two?")
    assert rest.frame["stream"] == "s" + stream.id
    await rest.delta(" a time.")
    await rest.done()
    assert (await server.next_stream()).request["messages"][1]["content"] == "Once upon a time."


@pytest.mark.parametrize("websockets", ["", BLOCKED], ids=["websockets", "http"])
async def test_no_word_of_the_application_is_lost_or_doubled(browser: Browser, websockets: str) -> None:
    """Over a network that is cut, and by pages that end, with the transport that there is."""
    words = [f"word{number} " for number in range(90)]
    engine = FakeEngine(Script(answer=words), held=True)
    async with serving(await make_app(engine)) as url, Relay(url).running() as relay:
        context, page = await new_page(browser)
        watch = PageWatch(page)
        await page.add_init_script(websockets)
        await page.goto(relay.url)
        await ask(page, "Long?")
        await until(lambda: engine.requests)
        prose = last_answer(page).locator(".prose")
        engine.step(20)
        await expect(prose).to_contain_text("word19")
        relay.cut()
        engine.step(20)
        await expect(prose).to_contain_text("word39")
        await page.reload()
        engine.step(20)
        await expect(prose).to_contain_text("word59")
        await until_complete(page)
        relay.is_away = True
        relay.cut()
        await expect(last_answer(page).locator(".standing")).to_have_text(WAITS)
        engine.release()
        relay.is_away = False
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        assert (await stored_answer(page))["text"] == "".join(words)
        assert (len(engine.requests), engine.aborted) == (1, [])
        await watch.check(page, relay.url)
        await context.close()
