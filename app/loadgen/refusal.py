"""A server's error in a word or two and in a sentence, out of the shapes in which servers send them."""

from __future__ import annotations

from typing import NamedTuple

import orjson

MAX_MESSAGE = 500


class Refusal(NamedTuple):
    """An error: its name, by which errors are counted (`503 overloaded`), and what it says."""

    name: str
    message: str


def read_refusal(status: int, body: bytes) -> Refusal:
    """Return what a body says; where that is nothing we know, its beginning."""
    text = " ".join(body.decode("utf-8", "replace").split())[:MAX_MESSAGE]
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = {}
    error = fields.get("error", fields) if isinstance(fields, dict) else {}
    if not isinstance(error, dict):  # {"error": "a sentence"}
        return Refusal(str(status), str(error))
    code = error.get("code") or error.get("type") or ""
    name = str(status) if code in ("", status, str(status)) else f"{status} {code}"
    return Refusal(name, str(error.get("message") or error.get("detail") or text))
