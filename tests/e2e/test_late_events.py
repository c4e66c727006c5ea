"""Events and results that come later than the state they belong to: they never undo a newer one."""

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, until_last, until_true
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_conversations import choose, entries, open_list
from tests.e2e.tour import DROP

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARK_CLOSE = 'dialog.addEventListener("close", () => (document.body.dataset.closed = "yes"));'
# What Escape and a quick Ctrl + / do: the browser closes the sheet at once, and its `close` event is a later task.
ESCAPE_AND_HELP = f"""() => {{
  const dialog = document.querySelector("dialog");
  {MARK_CLOSE}
  dialog.close();
  dispatchEvent(new KeyboardEvent("keydown", {{ key: "/", ctrlKey: true }}));
}}"""

SET_TWO_FIELDS = """() => {
  for (const [name, value] of [["temperature", "0.2"], ["top_p", "0.9"]]) {
    const field = document.getElementById(`setting-${name}`);
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
DROP_AND_LEAVE = f"""() => {{
  ({DROP})();
  document.querySelector(".new-chat").click();
}}"""
# Whether the messages of the address had been read when the page first asked for the server.
WATCH_START = """
const { getAll } = IDBIndex.prototype;
let isRead = false;
IDBIndex.prototype.getAll = function (...key) {
  const request = getAll.apply(this, key);
  request.addEventListener("success", () => (isRead = true));
  return request;
};
const { fetch: send } = window;
window.fetch = (...request) => {
  window.wasRead ??= isRead;
  return send(...request);
};
"""
# A transaction that does not end: all later ones wait.
HOLD_STORAGE = """async () => {
  const request = indexedDB.open("quire");
  await new Promise((resolve) => (request.onsuccess = resolve));
  const store = request.result.transaction(["conversations", "messages"], "readwrite").objectStore("messages");
  const goOn = () => (store.get("none").onsuccess = goOn);
  goOn();
}"""
# Timers of 1.6 seconds, the time that "Copied" is shown, wait for ever.
HOLD_TIMERS = """
window.held = new Set();
window.numHeld = 0;
const { setTimeout: set, clearTimeout: clear } = window;
window.setTimeout = (run, ms) => {
  if (ms !== 1600) return set(run, ms);
  const timer = { run };
  held.add(timer);
  numHeld += 1;
  return timer;
};
window.clearTimeout = (timer) => held.delete(timer) || clear(timer);
"""


@pytest.mark.parametrize("first", ["Model", "Keyboard shortcuts"])
async def test_a_sheet_that_is_opened_while_another_closes_stays(
    page: Page, server: ScriptedServer, first: str
) -> None:
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    if first == "Model":
        await page.locator(".model").click()
    else:
        await page.keyboard.press("Control+/")
    await expect(page.get_by_role("dialog", name=first)).to_be_visible()
    await page.evaluate(ESCAPE_AND_HELP)
    await expect(page.locator("body")).to_have_attribute("data-closed", "yes")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog")).to_have_count(0)


async def test_the_settings_stay_open_when_another_conversation_is_shown(page: Page, server: ScriptedServer) -> None:
    """As after a reload, where the conversation of the address is shown when it has been read."""
    await (await begin(page, server)).answer("Yes.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Settings", exact=True).click()
    sheet = page.get_by_role("dialog", name="Settings")
    await expect(sheet).to_be_visible()
    await sheet.evaluate(f"dialog => {{ {MARK_CLOSE} }}")
    await page.go_back()
    await expect(page.locator(".welcome")).to_be_visible()
    await expect(page.locator("body")).to_have_attribute("data-closed", "yes")
    await expect(sheet).to_be_visible()


async def test_two_settings_that_change_before_the_page_is_rendered_are_both_kept(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings", exact=True).click()
    await expect(page.get_by_label("Temperature")).to_be_visible()
    await page.evaluate(SET_TWO_FIELDS)
    await page.keyboard.press("Escape")
    await ask(page, "Why?")
    request = (await server.next_stream()).request
    assert (request["temperature"], request["top_p"]) == (0.2, 0.9)


@pytest.mark.own_page
async def test_a_question_can_be_asked_after_the_conversation_of_the_address_was_read(
    page: Page, server: ScriptedServer
) -> None:
    await (await begin(page, server)).answer("Yes.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.add_init_script(WATCH_START)
    await page.reload()
    await until_true(page, "'wasRead' in window")
    assert await page.evaluate("wasRead")


async def test_files_belong_to_the_conversation_on_which_they_were_dropped(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server)).answer("Yes.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.evaluate(DROP_AND_LEAVE)
    await expect(page.get_by_text("is not a text file")).to_be_visible()
    await ask(page, "Without files?")
    assert (await server.next_stream()).request["messages"] == [{"role": "user", "content": "Without files?"}]
    await page.go_back()
    await page.go_back()
    await expect(page.locator(".composer .file-name")).to_have_text("notes.txt")


@pytest.mark.own_page
async def test_a_second_copy_is_confirmed_as_long_as_the_first(page: Page, server: ScriptedServer) -> None:
    await page.add_init_script(HOLD_TIMERS)
    await (await begin(page, server)).answer("```sh\nquire serve\n```\n", size=100)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    for number, name in enumerate(("Copy code", "Copy answer"), start=1):
        button = page.get_by_role("button", name=name)
        for click in (2 * number - 1, 2 * number):
            await button.click()
            await until_true(page, f"numHeld === {click}")
        assert await page.evaluate("held.size") == number


async def test_a_reload_keeps_what_the_storage_was_too_slow_for(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await until_last(page, "messages", text="First.", state="done")
    await page.evaluate(HOLD_STORAGE)
    await open_list(page)
    await choose(page, "One?", "Rename")
    await page.get_by_label("Title", exact=True).fill("Mine")
    await page.get_by_label("Title", exact=True).press("Enter")
    await expect(entries(page).locator("bdi")).to_have_text(["Mine"])
    await ask(page, "Two?")
    await (await server.next_stream()).answer("Second.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await expect(last_answer(page).locator(".prose")).to_have_text("Second.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await open_list(page)
    await expect(entries(page).locator("bdi")).to_have_text(["Mine"])
