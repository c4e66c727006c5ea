"""Errors of servers, as OpenAI's API has them and as others do: without a code, as a text, as a list, as a page."""

from __future__ import annotations

import json
from typing import Any

from app.client.opening import ServerRefused

MAX_WORDS = 1000
_REDIRECTS = range(300, 400)
_MAX_DEPTH = 5
# Where vLLM, llama.cpp, Ollama and FastAPI have an error's text, from outside to inside.
_KEYS = ("error", "message", "detail", "msg")


def refusal(status: int, body: bytes, location: str | None = None) -> ServerRefused:
    """Return the error that a server has answered with; `location` is where a redirect leads."""
    if status in _REDIRECTS and location:
        return ServerRefused(f"the server sends to {location}; give that address", status=status)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):  # a page of a proxy
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    fields: dict[str, Any] = error if isinstance(error, dict) else {}
    code, param, message = (fields.get(name) for name in ("code", "param", "message"))
    if not isinstance(message, str) or not message:
        words = _words(answer)
        message = f"the server returned status {status}" + (f": {words}" if words else "")
    kind = "engine_error" if code is None else str(code)
    return ServerRefused(message[:MAX_WORDS], code=kind, status=status, param=param if isinstance(param, str) else None)


def _words(given: object) -> str:
    for _ in range(_MAX_DEPTH):
        if isinstance(given, list):
            given = given[0] if given else None
        elif isinstance(given, dict):
            given = next((given[key] for key in _KEYS if given.get(key)), None)
    return given if isinstance(given, str) else ""
