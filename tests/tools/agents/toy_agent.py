"""An agent over the chat route, with two tools and a session that it keeps at home: `python toy_agent.py URL TASK`.

`TOY` in its environment plants a fault: `lazy` edits nothing, `forgetful` keeps no session, `wrong` sends a request
that is refused, `failing` ends with an error, and `huge` sends more than fits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

FAULT = os.environ.get("TOY", "")
SESSION = Path(os.environ["HOME"]) / "session.json"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("Read", "Edit")
]


def answer(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the next message of the model."""
    instructions = [{"role": "system", "content": "a b " * 50_000}] if FAULT == "huge" else []
    body = {"messages": [*instructions, *messages], "tools": TOOLS, **({"temperature": -1} if FAULT == "wrong" else {})}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def result(name: str, arguments: dict[str, str]) -> str:
    """Do what a call asks for."""
    file = Path(arguments["file_path"])
    if name == "Edit" and FAULT != "lazy":
        file.write_text(file.read_text().replace(arguments["old_string"], arguments["new_string"]))
    return file.read_text() if name == "Read" else "Done."


def main(url: str, task: str) -> None:
    """Work until the model calls no tool."""
    messages = json.loads(SESSION.read_text()) if SESSION.exists() else []
    messages.append({"role": "user", "content": task})
    while (message := answer(url, messages)).get("tool_calls"):
        messages.append(message)
        for call in message["tool_calls"]:
            said = result(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    messages.append(message)
    if FAULT != "forgetful":
        SESSION.write_text(json.dumps(messages))
    print(message["content"])
    sys.exit(3 if FAULT == "failing" else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
