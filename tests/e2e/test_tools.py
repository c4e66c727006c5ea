"""Schemas and tools among the settings, and the results of calls, which the user enters."""

import json

import pytest
from playwright.async_api import Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import ask, last_answer, stored_answer, until_true
from tests.e2e.scripted import LIMITS, ScriptedServer, Stream
from tests.e2e.test_settings import open_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CAN = {"capabilities": {"reasoning": True, "structured_output": True, "tools": True}}


async def ready(page: Page, server: ScriptedServer) -> None:
    """Open the page of a model that can do both, and wait until it is known."""
    server.details = CAN
    await page.goto(server.url)
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")


async def call(stream: Stream, *names: str) -> None:
    """Answer with calls of tools."""
    pieces = [{"k": at, "id": f"call-{name}", "name": name} for at, name in enumerate(names)]
    pieces += [{"k": at, "a": json.dumps({"city": name})} for at, name in enumerate(names)]
    await stream.send("delta", i=0, n=1, k=9, x="", tool=pieces)
    stream.sent = 9
    await stream.done("tool_calls")


async def called(page: Page, server: ScriptedServer, *names: str) -> None:
    """Ask a question that is answered with calls."""
    await ready(page, server)
    await ask(page, "How is it?")
    await call(await server.next_stream(), *names)
    await expect(last_answer(page)).to_have_attribute("data-state", "done")


async def test_a_schema_and_tools_are_checked_while_they_are_typed_and_sent(page: Page, server: ScriptedServer) -> None:
    await ready(page, server)
    await open_settings(page)
    schema, tools = page.get_by_label("JSON schema"), page.get_by_label("Tools")
    await schema.fill('{"type": "object",')
    await expect(page.get_by_role("alert")).to_contain_text("JSON schema: this is not JSON yet.")
    await schema.fill("[]")
    await expect(page.get_by_role("alert")).to_have_text("JSON schema: enter an object, {…}.")
    await schema.fill(json.dumps(SCHEMA, indent=2))
    await tools.fill(json.dumps(TOOLS[0]))
    await expect(page.get_by_role("alert")).to_have_text("Tools: enter a list of objects, [{…}].")
    assert await violations(page) == []
    await tools.fill(json.dumps(TOOLS))
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.keyboard.press("Escape")
    await ask(page, "Who?")
    stream = await server.next_stream()
    assert stream.request == LIMITS | {
        "messages": [{"role": "user", "content": "Who?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        "tools": TOOLS,
    }
    await stream.error("invalid_value", 400, "tools[0].function.name has a character that is not allowed.")
    await expect(page.get_by_role("alert")).to_contain_text("“Tools”[0].function.name has a character")
    await page.reload()
    await open_settings(page)
    await expect(schema).to_have_value(json.dumps(SCHEMA, indent=2))


async def test_they_are_offered_for_models_that_can_and_where_they_are_set(page: Page, server: ScriptedServer) -> None:
    await ready(page, server)
    await open_settings(page)
    await page.get_by_label("Tools").fill("[]")
    await expect(page.get_by_label("Thinking", exact=True)).to_have_count(1)
    await page.keyboard.press("Escape")
    await ask(page, "Who?")
    await (await server.next_stream()).answer("Me.")
    server.details = {"capabilities": dict.fromkeys(CAN["capabilities"], False)}
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.reload()
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await open_settings(page)
    for name in ("Thinking", "Thinking effort", "JSON schema"):
        await expect(page.get_by_label(name, exact=True)).to_have_count(0)
    await page.get_by_label("Tools").fill("")
    await expect(page.get_by_label("Tools")).to_have_count(0)


async def test_results_are_entered_and_the_conversation_goes_on(page: Page, server: ScriptedServer) -> None:
    await called(page, server, "weather", "time")
    send = last_answer(page).get_by_role("button", name="Send results")
    calls = last_answer(page).locator(".ending")
    await expect(calls).to_have_text("The answer calls tools; this page runs none.")
    await page.get_by_label("Result of weather").fill('{"sky": "clear"}')
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Result of weather")).to_be_focused()
    await page.get_by_label("Result of time").fill("9:30")
    assert await violations(page) == []
    await send.click()
    stream = await server.next_stream()
    assert stream.request["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call-{name}",
                    "type": "function",
                    "function": {"name": name, "arguments": f'{{"city": "{name}"}}'},
                }
                for name in ("weather", "time")
            ],
        },
        {"role": "tool", "tool_call_id": "call-weather", "content": '{"sky": "clear"}'},
        {"role": "tool", "tool_call_id": "call-time", "content": "9:30"},
    ]
    await stream.answer("It is clear.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(page.get_by_label("Your question")).to_be_focused()
    await expect(page.get_by_role("button", name="Send results")).to_have_count(0)
    await expect(page.locator(".answer").first.locator(".ending")).to_have_count(0)
    results = page.locator(".question").last
    await results.get_by_text("Result of weather").click()
    await expect(results.locator("pre").first).to_have_text('{"sky": "clear"}')
    assert await violations(page) == []


async def test_what_is_typed_as_a_result_stays_and_other_results_are_a_branch(
    page: Page, server: ScriptedServer
) -> None:
    await called(page, server, "weather")
    await page.get_by_label("Result of weather").fill("<b>rain</b>")
    await stored_answer(page)
    await page.reload()
    field = page.get_by_label("Result of weather")
    await expect(field).to_have_value("<b>rain</b>")
    await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
    await field.press("Control+Enter")
    await (await server.next_stream()).answer("Wet.")
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await page.get_by_role("button", name="Edit results").click()
    await expect(page.get_by_label("Result of weather")).to_be_focused()
    await page.keyboard.type("snow")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Edit results")).to_be_focused()
    await page.get_by_role("button", name="Edit results").click()
    await expect(field).to_have_value("<b>rain</b>")
    await field.fill("")
    await page.get_by_role("button", name="Send result", exact=True).click()
    stream = await server.next_stream()
    assert stream.request["messages"][-1]["content"] == ""
    await expect(page.locator(".question").last).to_contain_text("Empty result of weather")
    await stream.answer("White.")
    await expect(page.get_by_role("group", name="Branch 2 of 2")).to_be_visible()


async def test_calls_without_results_can_be_left(page: Page, server: ScriptedServer) -> None:
    await called(page, server, "weather")
    await ask(page, "Never mind. Who are you?")
    stream = await server.next_stream()
    assert stream.request["messages"] == [{"role": "user", "content": "Never mind. Who are you?"}]
    await stream.answer("Quire.")
    await expect(page.get_by_label("Result of weather")).to_have_count(0)
    await until_true(page, "!document.querySelector('.results-form')")


async def test_an_answer_that_the_server_would_begin_anew_is_not_continued(page: Page, server: ScriptedServer) -> None:
    await ready(page, server)
    await ask(page, "Who?")
    stream = await server.next_stream()
    await stream.delta("Half of")
    await stream.done("length")
    again = last_answer(page).get_by_role("button", name="Continue answer")
    await expect(again).to_be_visible()
    await open_settings(page)
    await page.get_by_label("JSON schema").fill(json.dumps(SCHEMA))
    await page.keyboard.press("Escape")
    await expect(last_answer(page).locator(".ending")).to_contain_text("JSON of a schema cannot be continued")
    await expect(again).to_have_count(0)


async def test_a_wrong_schema_is_there_again_when_the_settings_are(page: Page, server: ScriptedServer) -> None:
    await ready(page, server)
    for _ in ("written", "and still there"):
        await open_settings(page)
        schema = page.get_by_label("JSON schema")
        await schema.press("End")
        await page.keyboard.type("{")
        await page.keyboard.press("Escape")
    await open_settings(page)
    await expect(schema).to_have_value("{{")
    await expect(page.get_by_role("alert")).to_contain_text("JSON schema: this is not JSON yet.")
