"""Every field of the Messages API wrong once, and every one that has no effect."""

from typing import Any

import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase, MessageCreateParamsStreaming

from app.api.anthropic.message_fields import CountTokensBody, MessagesBody
from app.api.body.field_table import Fate, rule_of
from tests.api.anthropic.messages import BODY, COUNT, PATH, TOOLS, USER, parsed
from tests.api.serving import client_of, make_app
from tests.fakes import FakeEngine


def content(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


TEXT = {"type": "text", "text": "a"}
RESULT = {"type": "tool_result", "tool_use_id": "a"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no max_tokens", {"max_tokens": None}, "max_tokens"),
    ("max_tokens -1", {"max_tokens": -1}, "max_tokens"),
    ("max_tokens 1.5", {"max_tokens": 1.5}, "max_tokens"),
    ("max_tokens true", {"max_tokens": True}, "max_tokens"),
    ("max_tokens as text", {"max_tokens": "5"}, "max_tokens"),
    ("max_tokens of 70 bits", {"max_tokens": 2**70}, "max_tokens"),
    ("model 3", {"model": 3}, "model"),
    ("messages null", {"messages": None}, "messages"),
    ("no messages", {"messages": []}, "messages"),
    ("a text as messages", {"messages": "Hi"}, "messages"),
    ("a text as a message", {"messages": ["Hi"]}, "messages[0]"),
    ("no role", {"messages": [{"content": "a"}]}, "messages[0].role"),
    ("another role", {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ("no content", {"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ("content null", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("content empty", {"messages": content()}, "messages[0].content"),
    ("a block without a type", {"messages": content(TEXT, {"text": "a"})}, "messages[0].content[1].type"),
    ("an unknown block", {"messages": content({"type": "video"})}, "messages[0].content[0].type"),
    ("a text of OpenAI", {"messages": content({"type": "image_url", "image_url": {}})}, "messages[0].content[0].type"),
    ("no text", {"messages": content({"type": "text"})}, "messages[0].content[0].text"),
    ("text 3", {"messages": content({"type": "text", "text": 3})}, "messages[0].content[0].text"),
    ("an image", {"messages": content({"type": "image"})}, "messages[0].content[0]"),
    ("no source", {"messages": content({"type": "document"})}, "messages[0].content[0].source"),
    ("no id of a result", {"messages": content({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
    ("is_error 1", {"messages": content(RESULT | {"is_error": 1})}, "messages[0].content[0].is_error"),
    ("a result of 3", {"messages": content(RESULT | {"content": 3})}, "messages[0].content[0].content"),
    ("an unknown block in a result", {"messages": content(RESULT | {"content": [{"type": "x"}]})},
     "messages[0].content[0].content[0].type"),
    ("a call without a name", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
     "messages[0].content[0].name"),
    ("an input of a list", {"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": [1]}]}]}, "messages[0].content[0].input"),
    ("a call of the user", {"messages": content({"type": "tool_use", "id": "a", "name": "f"})},
     "messages[0].content[0].type"),
    ("system 3", {"system": 3}, "system"),
    ("an image as system", {"system": [{"type": "image"}]}, "system[0].type"),
    ("stream 1", {"stream": 1}, "stream"),
    ("temperature 3", {"temperature": 3}, "temperature"),
    ("temperature as text", {"temperature": "1"}, "temperature"),
    ("top_p 2", {"top_p": 2}, "top_p"),
    ("top_k -2", {"top_k": -2}, "top_k"),
    ("top_k beyond the vocabulary", {"top_k": 2**20}, "top_k"),
    ("a stop sequence as text", {"stop_sequences": "END"}, "stop_sequences"),
    ("17 stop sequences", {"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ("an empty stop sequence", {"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    ("a long stop sequence", {"stop_sequences": ["a" * 257]}, "stop_sequences[0]"),
    ("tools {}", {"tools": {}}, "tools"),
    ("a text as a tool", {"tools": ["f"]}, "tools[0]"),
    ("no name of a tool", {"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ("description 3", {"tools": [TOOLS[0] | {"description": 3}]}, "tools[0].description"),
    ("a list as a schema", {"tools": [TOOLS[0] | {"input_schema": []}]}, "tools[0].input_schema"),
    ("strict 1", {"tools": [TOOLS[0] | {"strict": 1}]}, "tools[0].strict"),
    ("tool_choice auto", {"tool_choice": "auto"}, "tool_choice"),
    ("an unknown choice", {"tools": TOOLS, "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ("a tool without a name", {"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ("a tool that is not there", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ("any of no tools", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("thinking true", {"thinking": True}, "thinking"),
    ("unknown thinking", {"thinking": {"type": "deep"}}, "thinking.type"),
    ("a budget of -1", {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ("unknown effort", {"output_config": {"effort": "huge"}}, "output_config.effort"),
    ("another format", {"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ("a format without a schema", {"output_config": {"format": {"type": "json_schema"}}},
     "output_config.format.schema"),
    ("output_format text", {"output_format": "json"}, "output_format"),
    ("a container", {"container": "abc"}, "container"),
    ("servers of MCP", {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "a"}]}, "mcp_servers"),
    ("priority 101", {"priority": 101}, "priority"),
    ("an empty salt", {"cache_salt": ""}, "cache_salt"),
    ("queue_timeout -1", {"queue_timeout": -1}, "queue_timeout"),
    ("timeout 0", {"timeout": 0}, "timeout"),
    ("a field of chats", {"stop": ["a"], "response_format": {"type": "json_object"}, "functions": [{"name": "f"}]},
     "functions"),
]  # fmt: skip
OF_THE_ANSWER = ("max_tokens", "stream", "temperature", "top_p", "top_k", "stop_sequences", "priority", "cache_salt",
                 "queue_timeout", "timeout")  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "path"), WRONG, ids=[one[0] for one in WRONG])
async def test_a_wrong_field_is_named_and_reaches_no_engine(name, fields, path):
    engine = FakeEngine()
    async with client_of(await make_app(engine)) as client:
        answers = [await client.post(PATH, json=BODY | fields)]
        if path.partition("[")[0] not in OF_THE_ANSWER:
            body = {key: value for key, value in (BODY | fields).items() if key not in OF_THE_ANSWER}
            answers.append(await client.post(COUNT, json=body))
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), answer.text
        assert error["message"].startswith(path), error
        assert "Traceback" not in error["message"] and "app." not in error["message"]
    assert engine.requests == []


HARMLESS: dict[str, Any] = {
    "metadata": {"user_id": "x"}, "service_tier": "auto", "speed": "fast", "inference_geo": "eu",
    "diagnostics": {"a": 1}, "user_profile_id": "x", "workspace_id": "x", "cache_control": {"type": "ephemeral"},
    "container": None, "mcp_servers": [], "context_management": None,
}  # fmt: skip


async def test_accepted_fields_change_nothing_and_are_not_named():
    app = await make_app()
    plain, given = await parsed(app), await parsed(app, **HARMLESS)
    assert given.ignored == ()
    assert given.request.prompt_token_ids == plain.request.prompt_token_ids


async def test_ignored_fields_are_named():
    given = await parsed(
        await make_app(),
        context_management={"edits": []},
        loudness=3,
        output_config={"effort": "low", "task_budget": 1},
    )
    assert set(given.ignored) == {"context_management", "loudness", "output_config.task_budget"}


async def test_null_is_the_same_as_leaving_a_field_out():
    app = await make_app()
    names = [name for name in MessagesBody.__struct_fields__ if name not in ("messages", "max_tokens")]
    given = await parsed(app, **dict.fromkeys(names))
    assert given.ignored == ()
    assert given.request.prompt_token_ids == (await parsed(app)).request.prompt_token_ids


def test_every_own_rule_is_of_a_field_that_does_not_act():
    assert not set(MessagesBody.own_rules) & set(MessagesBody.__struct_fields__)
    assert {rule_of(name, MessagesBody).fate for name in MessagesBody.own_rules} == {
        Fate.ACCEPTED, Fate.IGNORED, Fate.REFUSED,
    }  # fmt: skip


def test_every_field_of_the_sdk_is_decided():
    """If this fails, the SDK has a new field: let it act, or add a rule."""
    for params, body in (
        (MessageCreateParamsBase, MessagesBody),
        (MessageCreateParamsStreaming, MessagesBody),
        (MessageCountTokensParams, CountTokensBody),
    ):
        assert not set(params.__annotations__) - {*body.__struct_fields__, *body.own_rules}
