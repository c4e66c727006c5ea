"""Flows through the whole page: by keyboard alone, without a network, across a restart, and with files."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, stored, until_true
from tests.e2e.scripted import ScriptedServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Puts files into an event of a drop or a paste; each file is [name, text or a list of bytes].
GIVE_FILES = """([kind, files]) => {
  const data = new DataTransfer();
  for (const [name, content] of files) {
    data.items.add(new File([typeof content === "string" ? content : new Uint8Array(content)], name));
  }
  const options = { bubbles: true, cancelable: true };
  if (kind === "drop") dispatchEvent(new DragEvent("drop", { ...options, dataTransfer: data }));
  else document.activeElement.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: data }));
}"""
HOSTILE = '<img src=x onerror="document.title=1">'
# Pastes a picture, with or without its text; returns whether the browser inserts the text.
PASTE_CELLS = """(hasText) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array([137, 80, 255, 0])], "image.png", { type: "image/png" }));
  if (hasText) data.setData("text/plain", "a\\tb");
  const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  return document.activeElement.dispatchEvent(event);
}"""


async def press_until(page: Page, key: str, name: str, limit: int = 40) -> None:
    """Press a key until the control with this name has the focus."""
    for _ in range(limit):
        await page.keyboard.press(key)
        if await page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent") == name:
            return
    pytest.fail(f"{limit} times {key} did not reach {name!r}")


async def test_everything_is_done_with_the_keyboard(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await press_until(page, "Tab", "What is Quire?")
    await page.keyboard.press("Enter")
    stream = await server.next_stream()
    await stream.delta("A server")
    await expect(last_answer(page).locator(".prose")).to_have_text("A server")
    await expect(page.get_by_label("Your question")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(last_answer(page)).to_have_attribute("data-state", "stopped")
    await press_until(page, "Shift+Tab", "Answer again")
    await page.keyboard.press("Space")
    await (await server.next_stream()).answer("A server for models.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(page.get_by_label("Your question")).to_be_focused()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_label("Search conversations")).to_be_focused()
    await page.keyboard.type("models")
    # The storage may be slow: who tabs on before something is found goes around the whole page.
    await expect(page.locator(".conversation mark")).to_have_text("models")
    await press_until(page, "Tab", "Actions for What is Quire?")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Rename")).to_be_visible()
    await press_until(page, "Tab", "Rename")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Title", exact=True)).to_be_focused()
    await page.keyboard.type("Renamed")
    await page.keyboard.press("Enter")
    await expect(page.locator(".conversation bdi")).to_have_text("Renamed")
    await page.keyboard.press("Control+b")
    await expect(page.locator(".sidebar")).to_have_count(0)
    await page.keyboard.press("Control+Shift+o")
    await expect(page.locator("article")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_be_focused()


async def test_a_restarted_server_is_found_again_and_continues_the_answer(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "Tell.")
    await stream.delta("Once upon")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon")
    await server.kill()
    await expect(page.get_by_role("alert")).to_contain_text("lost before the answer was complete")
    await expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    await server.listen()
    await page.get_by_role("button", name="Continue", exact=True).click()
    stream = await server.next_stream()
    assert stream.request["messages"][-1] == {"role": "assistant", "content": "Once upon"}
    await stream.answer(" a time.")
    await expect(last_answer(page).locator(".prose")).to_have_text("Once upon a time.")


async def test_files_are_pasted_and_dropped_and_what_is_no_text_is_named(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await page.evaluate(GIVE_FILES, ["drop", [[HOSTILE, "one\r\ntwo"], ["picture.png", [137, 80, 255, 0]]]])
    await expect(page.get_by_text("“picture.png” is not a text file (UTF-8).")).to_be_visible()
    await page.evaluate(GIVE_FILES, ["drop", [["large.txt", "x" * (1024 * 1024 + 1)]]])
    await expect(page.get_by_text("“large.txt” has 1.0 MB; at most 1 MB can be attached.")).to_be_visible()
    await page.get_by_label("Your question").focus()
    await page.evaluate(GIVE_FILES, ["paste", [["list.csv", "a,b"]]])
    await expect(page.locator(".composer .files li")).to_have_count(2)
    await ask(page, "What do they say?")
    content = (await server.next_stream()).request["messages"][0]["content"]
    assert "one\ntwo" in content and "a,b" in content and "list.csv" in content and "What do they say?" in content
    await expect(page.locator(".question")).to_contain_text(HOSTILE)
    await expect(page.locator(".question img")).to_have_count(0)
    assert (await page.title()).endswith("Quire")


async def test_a_picture_that_stands_beside_a_copied_text_is_not_attached(page: Page, server: ScriptedServer) -> None:
    """Spreadsheets and word processors put a picture of what is copied beside its text."""
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await page.get_by_label("Your question").focus()
    assert await page.evaluate(PASTE_CELLS, True)
    assert not await page.evaluate(PASTE_CELLS, False)
    await expect(page.get_by_text("“image.png” is not a text file (UTF-8).")).to_be_visible()


async def test_one_question_waits_for_the_end_of_an_answer(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "One?")
    await stream.delta("First")
    await page.get_by_label("Your question").fill("Two?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".queued")).to_contain_text("Two?")
    await page.get_by_label("Your question").fill("Three?")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Your question")).to_have_value("Three?")
    await stream.delta(".")
    await stream.done()
    second = await server.next_stream()
    assert [message["content"] for message in second.request["messages"]] == ["One?", "First.", "Two?"]
    await expect(page.locator(".queued")).to_have_count(0)
    await expect(page.get_by_label("Your question")).to_have_value("Three?")


async def test_each_conversation_keeps_its_draft(page: Page, server: ScriptedServer) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    field = page.get_by_label("Your question")
    await field.fill("half a question")
    await page.get_by_role("button", name="New chat").click()
    await expect(field).to_have_value("")
    await field.fill("another half")
    await page.reload()
    await expect(field).to_have_value("another half")
    await page.locator(".conversation-title").click()
    await expect(field).to_have_value("half a question")
    await page.get_by_role("button", name="New chat").click()
    await expect(field).to_have_value("another half")


async def test_a_question_that_waits_is_put_back_with_its_file_after_a_reload(
    page: Page, server: ScriptedServer
) -> None:
    stream = await begin(page, server, "One?")
    await stream.delta("First")
    field = page.get_by_label("Your question")
    await field.focus()
    await page.evaluate(GIVE_FILES, ["paste", [["list.csv", "a,b"]]])
    await expect(page.locator(".composer .files li")).to_have_count(1)
    await field.fill("Two?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".queued")).to_contain_text("Two?")
    await page.reload()
    await expect(field).to_have_value("Two?")
    await expect(page.locator(".composer .files li")).to_have_count(1)
    await expect(page.locator(".queued")).to_have_count(0)


async def test_the_meter_counts_the_context_and_warns_when_it_is_nearly_full(
    page: Page, server: ScriptedServer
) -> None:
    server.details = {"max_model_len": 100}
    stream = await begin(page, server)
    await stream.delta("Some.", tokens=20)
    await stream.done()
    meter = page.locator(".context")
    await expect(meter).to_have_text("29 of 100 tokens")
    await expect(meter).to_have_attribute("data-full", "false")
    await ask(page, "More?")
    stream = await server.next_stream()
    await stream.delta("Much.", tokens=80)
    await stream.done()
    await expect(meter).to_have_attribute("data-full", "true")


async def test_the_model_is_described_and_the_conversation_is_a_request(page: Page, server: ScriptedServer) -> None:
    server.details = {"max_model_len": 4096, "format": "gguf", "quantization": "q4_0", "kv_capacity_tokens": 65536}
    await (await begin(page, server, "It's “quoted”?")).answer("Yes.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.locator(".model").click()
    sheet = page.get_by_role("dialog", name="Model")
    for fact in ("guide", "ready", "gguf", "q4_0", "4,096 tokens", "65,536 tokens"):
        await expect(sheet.get_by_text(fact, exact=True)).to_be_visible()
    for language, start in (("curl", "curl "), ("Python", "from openai import OpenAI"), ("JavaScript", "const ")):
        await sheet.get_by_role("button", name=language, exact=True).click()
        await expect(sheet.locator(".snippet")).to_contain_text(start)
        await expect(sheet.locator(".snippet")).to_contain_text("quoted")
        await expect(sheet.locator(".snippet")).to_contain_text(server.url)


async def test_code_has_colours_and_a_switch_for_wrapping(page: Page, server: ScriptedServer) -> None:
    code = f"for x in range(3):  # {HOSTILE}\n    print('{'long ' * 60}')"
    await (await begin(page, server)).answer(f"```python\n{code}\n```\n\n```nothing\nplain\n```", size=40)
    prose = last_answer(page).locator(".prose")
    await expect(prose.locator(".hljs-keyword").first).to_have_text("for")
    await expect(prose.locator("pre code").first).to_have_text(code)
    await expect(prose.locator("img")).to_have_count(0)
    block = prose.locator("pre").first
    is_wide = "pre => pre.scrollWidth > pre.clientWidth"
    assert await block.evaluate(is_wide)
    await prose.get_by_role("button", name="Wrap long lines").first.click()
    await until_true(block, "pre => pre.scrollWidth <= pre.clientWidth")


async def test_an_open_code_block_stays_wrapped_when_it_grows(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("- One:\n\n  ```sh\n  one\n  ```\n\n- Two:\n\n  ```sh\n  first line\n")
    switches = last_answer(page).get_by_role("button", name="Wrap long lines")
    await expect(switches).to_have_count(2)
    await switches.last.click()
    await expect(switches.last).to_have_attribute("aria-pressed", "true")
    await stream.delta("  second line\n  third")
    await expect(last_answer(page).locator("pre").last).to_contain_text("third")
    await expect(last_answer(page).locator(".code-frame").last).to_have_class("code-frame wrapped")
    await expect(switches.last).to_have_attribute("aria-pressed", "true")
    await expect(switches.first).to_have_attribute("aria-pressed", "false")


async def test_hostile_records_of_an_import_are_inert(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    await (await begin(page, server, "One?")).answer("First.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    conversation = (await stored(page, "conversations"))[0] | {"title": HOSTILE, "titleFrom": "user"}
    question, answer = await stored(page)
    question |= {"text": HOSTILE, "files": [{"name": HOSTILE, "text": HOSTILE}]}
    tools = [{"id": "1", "name": HOSTILE, "arguments": HOSTILE}]
    answer |= {"text": HOSTILE, "reasoning": HOSTILE, "tools": tools, "state": "failed", "error": HOSTILE}
    archive = {"format": "quire.conversations", "version": 1}
    archive["conversations"] = [{**conversation, "messages": [question, answer]}]
    (tmp_path / "hostile.json").write_text(json.dumps(archive))
    await page.get_by_role("button", name="Conversations", exact=True).click()
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files(tmp_path / "hostile.json")
    await page.locator(".conversation-title", has_text=HOSTILE).click()
    await expect(last_answer(page).get_by_role("alert")).to_contain_text(HOSTILE)
    for fold in await page.locator("article summary").all():
        await fold.click()
    await expect(page.locator("article").get_by_text(HOSTILE).first).to_be_visible()
    await expect(page.locator("img")).to_have_count(0)
    assert (await page.title()).endswith("Quire")
