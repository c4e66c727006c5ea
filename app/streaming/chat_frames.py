"""The server's frames of quire.v1, as text: JSON made once. Fields: the protocol's page (`chat_table`).

Logprobs entries and usage have OpenAI's shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.contract.errors import ErrorInfo
from app.contract.events import TokenDelta, Usage
from app.streaming.openai_shapes import usage_fields
from app.streaming.stream_timings import StreamTimings


def make(kind: str, **fields: object) -> str:
    """Return a frame whose fields need no more than their names."""
    return orjson.dumps({"t": kind, **fields}).decode()


def delta(client_id: str, event: TokenDelta, entries: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return the frame of new tokens, with their logprobs entries if there are any."""
    fields: dict[str, Any] = {
        "t": "delta",
        "id": client_id,
        "i": event.choice,
        "n": event.first,
        "k": len(event.token_ids),
        "x": event.text,
    }
    if entries is not None:
        fields["lp"] = entries
    return orjson.dumps(fields).decode()


def done(client_id: str, usage: Usage, timings: StreamTimings) -> str:
    """Return the frame that ends a stream whose choices have all ended."""
    figures = {name: round(value, 3) for name, value in timings._asdict().items()}
    return make("done", id=client_id, usage=usage_fields(usage), timings=figures)


def error(client_id: str | None, info: ErrorInfo, *, is_fatal: bool = False) -> str:
    """Return the frame of an error: of a stream, or without `client_id` of a frame."""
    stream = {} if client_id is None else {"id": client_id}
    fields = {"code": info.code, "status": info.http_status, "message": info.message, "param": info.param}
    return make("error", **stream, **fields, fatal=is_fatal)
