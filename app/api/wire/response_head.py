"""The heads of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from starlette.types import Message

MAX_IGNORED_NAMES = 32
MAX_NAME_LENGTH = 64


def start_message(ignored: Sequence[str], headers: Mapping[str, str]) -> Message:
    """Return the ASGI message that begins a response; a header names the ignored fields of its body."""
    fields = {**headers, **ignored_header(ignored)}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names the ignored fields of a body, quoted and truncated; none if there are none."""
    ignored = [quote(name, safe="")[:MAX_NAME_LENGTH] for name in names[:MAX_IGNORED_NAMES]]
    return {"x-quire-ignored": ", ".join(ignored)} if ignored else {}
