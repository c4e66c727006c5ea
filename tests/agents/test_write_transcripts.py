"""The transcripts: they are what the script writes, of the sizes that were seen, and have what agents do."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.agents.play import load, requests
from tests.agents.write_transcripts import FOLDER, transcripts, written

NAMES = sorted(transcripts())
# Characters of the first prompt with its tools: of Codex 9,164 tokens, of Claude Code 12,504, with a common tokenizer.
FIRST_CHARS = {"codex.json": 40_000, "claude_code.json": 52_000, "opencode.json": 28_000, "cline.json": 30_000}


def conversation(name: str) -> list[dict[str, Any]]:
    """The bodies of the requests that belong to the conversation."""
    return [body for body, is_alone in requests(load(FOLDER / name)) if not is_alone]


def text_of(name: str) -> str:
    return json.dumps(load(FOLDER / name)["requests"])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_the_script_writes(name):
    """If this fails: `python -m tests.agents.write_transcripts`."""
    assert (FOLDER / name).read_text(encoding="utf-8") == written(transcripts()[name])


@pytest.mark.parametrize("name", FIRST_CHARS)
def test_the_first_prompt_is_as_long_as_the_agents(name):
    body, _ = conversation(name)[:2]
    parts = [body.get("tools", []), body.get("system", ""), body.get("input") or body["messages"]]
    assert FIRST_CHARS[name] * 0.9 < sum(len(json.dumps(part)) for part in parts) < FIRST_CHARS[name] * 1.1


@pytest.mark.parametrize("name", NAMES)
def test_a_session_has_ten_questions(name):
    """Questions are messages of the user; those that have the result of a call do not count."""
    added = [item for each in load(FOLDER / name)["requests"] for item in each["adds"]]
    asked = [json.dumps(item) for item in added if item.get("role") == "user"]
    assert len([item for item in asked if "tool_result" not in item and "[read_file" not in item]) >= 10


@pytest.mark.parametrize("name", [name for name in NAMES if name != "codex_websocket.json"])
def test_a_request_has_all_items_of_the_one_before(name):
    """Claude Code marks the end of the conversation, which is a list of blocks then and may be a text later."""
    for before, after in pairwise(conversation(name)):
        items = before.get("input") or before["messages"]
        assert _plain(after.get("input") or after["messages"])[: len(items)] == _plain(items)


def _plain(items: list[Any]) -> list[Any]:
    plain = []
    for item in items:
        content = item.get("content")
        if isinstance(content, list):
            blocks = [{key: value for key, value in block.items() if key != "cache_control"} for block in content]
            content = blocks[0]["text"] if len(blocks) == 1 and blocks[0].get("type") == "text" else blocks
        plain.append({**item, "content": content})
    return plain


def test_the_end_of_a_conversation_with_claude_code_is_a_list_and_later_a_text():
    first, second = ([m["content"] for m in body["messages"]] for body in conversation("claude_code.json")[3:5])
    text = second[len(first) - 1]
    assert isinstance(text, str)
    assert first[-1] == [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize("name", ["codex.json", "claude_code.json", "opencode.json"])
def test_a_session_has_parallel_calls_cut_arguments_and_an_interrupted_call(name):
    text = text_of(name)
    assert "3a" in text and "3b" in text
    assert "import count_w" in text or "from words impo" in text
    assert "abort" in text or "interrupted" in text


def test_codex_has_its_kinds_of_items_and_tools():
    text = text_of("codex.json")
    kinds = ("custom_tool_call_output", "tool_search_call", "tool_search_output", "input_image", "namespace", "summary")
    assert [kind for kind in kinds if f'"{kind}"' not in text] == []
    tools = load(FOLDER / "codex.json")["body"]["tools"]
    assert [tool["type"] for tool in tools] == ["function"] * 7 + ["namespace", "web_search"]
    assert len(tools[7]["tools"]) == 5


def test_claude_code_has_its_kinds_of_blocks_and_tools():
    text = text_of("claude_code.json")
    kinds = ("thinking", "tool_use", "tool_result", "image", "tool_reference")
    assert [kind for kind in kinds if f'"type": "{kind}"' not in text] == []
    assert '"role": "system"' in text
    body = load(FOLDER / "claude_code.json")["body"]
    assert len(body["tools"]) == 12 and [t["name"] for t in body["tools"] if t.get("defer_loading")] == ["Calendar"]
    assert len(body["system"]) == 3 and body["system"][0]["text"].startswith("x-anthropic-billing-header:")


def test_frames_over_a_websocket_have_nothing_of_the_model():
    bodies = conversation("codex_websocket.json")
    assert bodies[0]["generate"] is False and [item["role"] for item in bodies[0]["input"]] == ["developer"]
    items = [item for body in bodies for item in body["input"]]
    assert {item["type"] for item in items} == {
        "message",
        "function_call_output",
        "custom_tool_call_output",
        "tool_search_output",
    }
    assert all(item.get("role") != "assistant" for item in items)
