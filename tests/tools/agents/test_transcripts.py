"""What a client sends is compared with its transcript: nothing that is new is missed, and nothing old is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents import play
from tools.agents.clients import Setup, setups
from tools.agents.shapes import shape_of
from tools.agents.transcripts import FOLDER, differences

SETUPS = {setup.name: setup for setup in setups("http://127.0.0.1:1")}
FILES = {
    "opencode-chat": "opencode.json",
    "claude-code-messages": "claude_code.json",
    "codex-responses": "codex.json",
    "codex-responses-websocket": "codex_websocket.json",
}


def sent(file: Path) -> list[dict]:
    """The requests of a transcript, as they are recorded."""
    return [{"body": shape_of(request.body)} for request in play.requests(play.load(file))]


@pytest.mark.parametrize("name", FILES)
def test_a_client_that_sends_its_transcript_does_not_differ(name):
    assert [*differences(SETUPS[name], sent(FOLDER / FILES[name]))] == []


@pytest.mark.parametrize("name", FILES)
def test_a_new_field_a_new_kind_and_a_new_tool_are_told(name):
    requests = sent(FOLDER / FILES[name])
    requests[0]["body"]["new_field"] = True
    requests.append(
        {"body": shape_of({"input": [{"type": "new_kind"}], "tools": [{"type": "function", "name": "new"}]})}
    )
    told = [*differences(SETUPS[name], requests)]
    assert set(told) == {"input[].type: new_kind", "new_field: True", "tools[]: function new"}


def test_requests_without_a_body_are_no_difference():
    assert [*differences(SETUPS["opencode-chat"], [{"method": "GET", "path": "/v1/models"}])] == []


def test_a_wire_without_a_transcript_is_told(tmp_path: Path):
    assert [*differences(SETUPS["opencode-messages"], [])] == ["agents has none of opencode over messages"]
    assert len([*differences(Setup("x", "chat", (), ()), [], tmp_path)]) == 1
