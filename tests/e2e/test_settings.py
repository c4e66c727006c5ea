"""Settings of a conversation: sent with its requests, checked at once, kept, and saved as presets."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, begin, last_answer, until_true
from tests.e2e.scripted import LIMITS, ScriptedServer

# A storage that has no room for presets.
FULL_STORAGE = """(method) => {
  const write = IDBObjectStore.prototype[method];
  IDBObjectStore.prototype[method] = function (...given) {
    if (this.name === "presets") throw new DOMException("full", "QuotaExceededError");
    return write.apply(this, given);
  };
}"""
REASONS = {"capabilities": {"reasoning": True}}
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def open_settings(page: Page) -> None:
    """Open the window of settings."""
    await page.get_by_role("button", name="Settings", exact=True).click()
    await expect(page.get_by_role("dialog", name="Settings")).to_be_visible()


async def test_settings_are_sent_and_belong_to_their_conversation(page: Page, server: ScriptedServer) -> None:
    server.details = REASONS | {
        "default_sampling_params": {"temperature": 0.6, "top_p": 0.95},
        "default_sampling_sources": {"temperature": "recommended by its publisher"},
        "default_sampling_without_thinking": {"params": {"temperature": 0.7}, "sources": {}},
    }
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await open_settings(page)
    await expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.6")
    said = re.compile("vary more. Default 0.6: recommended by its publisher.$")
    await expect(page.get_by_label("Temperature")).to_have_accessible_description(said)
    await expect(page.get_by_label("Top-p")).to_have_accessible_description(re.compile("1 allows all.$"))
    await expect(page.get_by_label("Seed")).to_have_attribute("placeholder", "random")
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Temperature").fill("0.2")
    await page.get_by_label("Stop strings").fill("END\nSTOP")
    await page.get_by_label("Thinking", exact=True).select_option("off")
    await expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.7")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Settings", exact=True)).to_be_focused()
    await ask(page, "Why?")
    stream = await server.next_stream()
    assert stream.request == LIMITS | {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        "temperature": 0.2,
        "stop": ["END", "STOP"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await stream.answer("So.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await open_settings(page)
    await expect(page.get_by_label("Temperature")).to_have_value("0.2")
    await page.get_by_label("Temperature").fill("")
    await page.get_by_role("button", name="Close").click()
    await ask(page, "And?")
    assert "temperature" not in (await server.next_stream()).request
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Other?")
    assert set((await server.next_stream()).request) == {"messages", *LIMITS}


async def test_a_wrong_value_is_named_and_not_sent(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await open_settings(page)
    await page.get_by_label("Top-p").fill("7")
    await expect(page.get_by_role("alert")).to_have_text("Top-p is “7”; enter a number from 0 to 1.")
    await page.keyboard.press("Escape")
    await ask(page, "Why?")
    assert set((await server.next_stream()).request) == {"messages", *LIMITS}


async def save_preset(page: Page, name: str) -> None:
    """Open the settings, and make a preset with the seed 7 that new chats use."""
    await open_settings(page)
    await page.get_by_label("Seed").fill("7")
    await page.get_by_label("Name of the preset").fill(name)
    await page.get_by_role("button", name="Save these settings").click()
    await expect(page.get_by_role("option", name=name)).to_be_attached()
    await page.get_by_label("Use for new chats").check()


async def test_a_preset_is_kept_and_used_for_new_chats(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await save_preset(page, "<b>fixed</b>")
    await page.keyboard.press("Escape")
    await page.reload()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await ask(page, "Why?")
    assert (await server.next_stream()).request["seed"] == 7
    await page.get_by_role("button", name="New chat").click()
    await open_settings(page)
    await expect(page.get_by_label("Seed")).to_have_value("7")
    await page.get_by_label("Preset", exact=True).select_option(label="The server's defaults")
    await expect(page.get_by_label("Seed")).to_have_value("")


async def test_what_was_emptied_in_a_new_chat_does_not_come_back_from_the_preset(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    await save_preset(page, "fixed")
    await page.get_by_label("Seed").fill("")
    await page.keyboard.press("Escape")
    await page.reload()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await ask(page, "Why?")
    assert "seed" not in (await server.next_stream()).request


async def test_the_window_names_the_preset_whose_values_it_shows(page: Page, server: ScriptedServer) -> None:
    chosen = page.get_by_label("Preset", exact=True).locator("option:checked")
    await page.goto(server.url)
    await save_preset(page, "fixed")
    await page.keyboard.press("Escape")
    await open_settings(page)
    await expect(chosen).to_have_text("fixed")
    await expect(page.get_by_label("Name of the preset")).to_have_value("fixed")
    await page.get_by_label("Seed").fill("8")
    await expect(chosen).to_have_text("This conversation's own")
    await page.reload()
    await open_settings(page)
    await expect(chosen).to_have_text("This conversation's own")
    await page.get_by_label("Preset", exact=True).select_option(label="fixed")
    await expect(page.get_by_label("Seed")).to_have_value("7")
    await page.get_by_label("Preset", exact=True).select_option(label="This conversation's own")
    await expect(page.get_by_label("Seed")).to_have_value("8")
    await page.get_by_label("Seed").fill("7")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(chosen).to_have_text("This conversation's own")
    await expect(page.get_by_label("Seed")).to_have_value("7")


async def test_new_chats_are_switched_to_the_preset_of_the_window_and_back(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    await save_preset(page, "fixed")
    await page.keyboard.press("Escape")
    await open_settings(page)
    box, words = page.get_by_label("Use for new chats"), page.locator("#for-new")
    await expect(box).to_be_checked()
    await expect(words).to_have_text("New chats begin with “fixed”.")
    await page.get_by_label("Seed").fill("8")
    await expect(box).to_be_disabled()
    await expect(words).to_contain_text("New chats begin with “fixed”. To begin them with these settings, save these")
    await page.get_by_label("Seed").fill("7")
    await box.uncheck()
    await expect(words).to_have_text("New chats begin with the server's defaults.")
    await page.keyboard.press("Escape")
    await open_settings(page)
    await page.get_by_label("Use for new chats").check()
    await page.keyboard.press("Escape")
    await page.reload()
    await ask(page, "Why?")
    assert (await server.next_stream()).request["seed"] == 7


async def test_each_field_is_reset_to_the_servers_default(page: Page, server: ScriptedServer) -> None:
    server.details = REASONS
    await page.goto(server.url)
    await open_settings(page)
    await expect(page.get_by_role("button", name="Reset")).to_have_count(0)
    await page.get_by_label("Temperature", exact=True).fill("0.2")
    await page.get_by_label("Top-p", exact=True).fill("7")
    await page.get_by_label("Thinking", exact=True).select_option("on")
    for name in ("Temperature", "Top-p", "Thinking"):
        await page.get_by_role("button", name=f"Reset {name}", exact=True).click()
        await expect(page.get_by_label(name, exact=True)).to_have_value("")
        await expect(page.get_by_label(name, exact=True)).to_be_focused()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.keyboard.press("Escape")
    await ask(page, "Why?")
    assert set((await server.next_stream()).request) == {"messages", *LIMITS}


async def test_a_badge_tells_what_a_conversation_has_of_its_own(page: Page, server: ScriptedServer) -> None:
    button = page.get_by_role("button", name="Settings", exact=True)
    await page.goto(server.url)
    await expect(button).not_to_have_attribute("data-badge", re.compile("."))
    await open_settings(page)
    await page.get_by_label("System prompt", exact=True).fill("Be brief.")
    await page.keyboard.press("Escape")
    await expect(button).to_have_attribute("title", "Settings: this conversation has a system prompt of its own")
    await open_settings(page)
    await page.get_by_label("Seed", exact=True).fill("7")
    await page.get_by_label("Top-k", exact=True).fill("5")
    await page.keyboard.press("Escape")
    await expect(button).to_have_attribute(
        "title", "Settings: this conversation has a system prompt and 2 settings of its own"
    )
    await expect(button).to_have_attribute("data-badge", "3")
    await (await begin(page, server)).answer("So.")
    await page.get_by_role("button", name="New chat").click()
    await expect(button).not_to_have_attribute("data-badge", re.compile("."))


@pytest.mark.parametrize(("method", "done"), [("put", "saved"), ("delete", "deleted")])
async def test_a_preset_that_cannot_be_stored_says_so(
    page: Page, server: ScriptedServer, method: str, done: str
) -> None:
    await page.goto(server.url)
    await open_settings(page)
    await page.get_by_label("Name of the preset").fill("fixed")
    if method == "delete":
        await page.get_by_role("button", name="Save these settings").click()
        await expect(page.get_by_label("Preset", exact=True)).to_have_value(re.compile("."))
    await page.evaluate(FULL_STORAGE, method)
    await page.get_by_role("button", name="Save these settings" if method == "put" else "Delete").click()
    await expect(page.get_by_role("alert")).to_contain_text(f"The preset was not {done}. The browser's storage")
    await expect(page.get_by_role("option", name="fixed")).to_have_count(int(method == "delete"))


@pytest.mark.parametrize(("model", "has_titles"), [("guide", False), ("smollm2", True)])
async def test_what_is_set_for_the_page_stands_apart_and_titles_are_offered_where_the_model_writes_them(
    page: Page, server: ScriptedServer, model: str, has_titles: bool
) -> None:
    server.model = model
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await open_settings(page)
    await expect(page.get_by_text("For this conversation, from the next answer on.")).to_be_visible()
    of_page = page.get_by_role("heading", name="For the whole page").locator("~ *")
    await expect(of_page.get_by_label("Theme of the page")).to_be_visible()
    await expect(page.get_by_label("Let the model write the titles")).to_have_count(int(has_titles))


async def test_the_theme_is_chosen_by_hand_and_kept(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.url)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(paper)
    await open_settings(page)
    await page.get_by_label("Theme of the page").select_option("dark")
    await until_true(page, f"{paper} !== '{light}'")
    await page.reload()
    await expect(page.locator(".brand")).to_be_visible()
    await until_true(page, f"{paper} !== '{light}'")


async def test_the_shortcuts_are_listed(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await page.keyboard.press("Control+/")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(sheet.get_by_text("New chat")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(sheet).to_have_count(0)
    await stream.delta("Escape closes the list, and does not stop the answer.")
    await expect(last_answer(page)).to_have_attribute("data-state", "streaming")


async def test_a_setting_that_is_not_valid_is_named_above_the_field_until_it_is_right(
    page: Page, server: ScriptedServer
) -> None:
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await open_settings(page)
    await page.get_by_label("Temperature").fill("abc")
    await page.get_by_label("Max tokens").fill("0")
    answers = page.get_by_label("Answers at once")
    await expect(answers).to_have_accessible_description(re.compile("^Up to 4 answers"))
    await answers.fill("2")
    await answers.fill("99")
    await page.keyboard.press("Escape")
    notice = page.get_by_role("status").filter(has_text="Not valid")
    await expect(notice).to_contain_text(
        "you entered for Temperature, Max tokens and Answers at once. What was set before still acts."
    )
    await ask(page, "Why?")
    stream = await server.next_stream()
    assert stream.request == LIMITS | {"messages": [{"role": "user", "content": "Why?"}], "n": 2}
    await expect(notice).to_be_visible()
    await notice.get_by_role("button", name="Correct it").click()
    await expect(page.get_by_label("Temperature")).to_have_value("abc")
    await page.get_by_label("Temperature").fill("1")
    await page.get_by_label("Max tokens").fill("")
    await page.get_by_label("Answers at once").fill("2")
    await page.keyboard.press("Escape")
    await expect(notice).to_have_count(0)


async def test_a_message_of_the_server_names_a_setting_by_its_label(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server, "Why?")
    await stream.error("invalid_value", 400, "response_format.json_schema.schema is rejected: no type.")
    await expect(page.get_by_role("alert")).to_contain_text("“JSON schema” is rejected: no type.")
