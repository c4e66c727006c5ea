"""The server's frames of quire.v1, as text: one function per frame, JSON made once. Fields: the protocol's page.

Logprobs entries and usage have OpenAI's shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.contract.errors import ErrorInfo
from app.contract.events import FinishReason, Progress, TokenDelta, Usage
from app.streaming.openai_shapes import usage_fields
from app.streaming.stream_timings import StreamTimings


def welcome(server: str, limits: Mapping[str, int], heartbeat_ms: int) -> str:
    """The answer to `hello`."""
    return _dump({"t": "welcome", "server": server, "limits": limits, "heartbeat_ms": heartbeat_ms})


def accepted(client_id: str, stream: str, model: str) -> str:
    """The engine has taken the request: `stream` is the server's id for it."""
    return _dump({"t": "accepted", "id": client_id, "stream": stream, "model": model})


def delta(client_id: str, event: TokenDelta, entries: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Tokens `n` to `n + k - 1` of choice `i`, the text they released, and their logprobs entries if there are any."""
    frame: dict[str, Any] = {
        "t": "delta",
        "id": client_id,
        "i": event.choice,
        "n": event.first,
        "k": len(event.token_ids),
        "x": event.text,
    }
    if entries is not None:
        frame["lp"] = entries
    return _dump(frame)


def progress(client_id: str, event: Progress) -> str:
    """Where a request stands that gains no tokens now."""
    return _dump({"t": "progress", "id": client_id, "phase": event.phase, "done": event.done, "total": event.total})


def finish(client_id: str, choice: int, last: int, reason: FinishReason) -> str:
    """A choice has ended; `last` is the number of its last token."""
    return _dump({"t": "finish", "id": client_id, "i": choice, "n": last, "finish_reason": reason})


def done(client_id: str, usage: Usage, timings: StreamTimings) -> str:
    """Every choice has ended, and with them the stream."""
    figures = {name: round(value, 3) for name, value in timings._asdict().items()}
    return _dump({"t": "done", "id": client_id, "usage": usage_fields(usage), "timings": figures})


def error(client_id: str | None, info: ErrorInfo, *, is_fatal: bool = False) -> str:
    """A frame, or the stream `client_id`, has failed; after a fatal one the server closes the socket."""
    frame: dict[str, Any] = {"t": "error"}
    if client_id is not None:
        frame["id"] = client_id
    frame |= {"code": info.code, "status": info.http_status, "message": info.message, "param": info.param}
    return _dump(frame | {"fatal": is_fatal})


def paused(client_id: str) -> str:
    """Generation waits for the client."""
    return _dump({"t": "paused", "id": client_id})


def resumed(client_id: str) -> str:
    """Generation goes on."""
    return _dump({"t": "resumed", "id": client_id})


def draining(deadline_ms: int) -> str:
    """The server stops; open streams have so long to end."""
    return _dump({"t": "draining", "deadline_ms": deadline_ms})


def ping(ts: int) -> str:
    """The server's heartbeat; `ts` comes back in the client's `pong`."""
    return _dump({"t": "ping", "ts": ts})


def pong(ts: float | None) -> str:
    """The answer to the client's `ping`."""
    return _dump({"t": "pong", "ts": ts})


def _dump(frame: Mapping[str, Any]) -> str:
    return orjson.dumps(frame).decode()
