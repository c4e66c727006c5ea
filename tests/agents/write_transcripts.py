"""Writes what coding agents send into the files beside this one: `python -m tests.agents.write_transcripts`.

The words are ours; fields, roles, kinds of items, the order and the sizes are those that the clients named in the files
were seen to send. A file has the fields of all requests (`body`), and what each adds to the list of items or messages;
`play` makes the requests of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.agents import chat_agents, claude_code, codex

FOLDER = Path(__file__).parent


def transcripts() -> dict[str, dict[str, Any]]:
    """Return all transcripts by the names of their files."""
    return {
        "codex.json": codex.over_http(),
        "codex_websocket.json": codex.over_websocket(),
        "claude_code.json": claude_code.transcript(),
        "opencode.json": chat_agents.opencode(),
        "cline.json": chat_agents.cline(),
    }


def written(transcript: dict[str, Any]) -> str:
    """Return the text of a file."""
    return json.dumps(transcript, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    for name, transcript in transcripts().items():
        (FOLDER / name).write_text(written(transcript), encoding="utf-8")
