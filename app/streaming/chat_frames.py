"""The frames of quire.v1 as text: makes the server's and reads a client's. Their fields: docs/reference/websocket.md.

A client's frame costs little whatever it contains: the known fields are extracted from its JSON as bytes, and unknown
ones make no objects. `request`, which may have megabytes, stays JSON; it is parsed like a body that came over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from app.contract.errors import ErrorInfo
from app.contract.events import TokenDelta, Usage
from app.streaming.openai_shapes import UsageAnswer
from app.streaming.stream_timings import StreamTimings

MAX_FIELD_BYTES = 8 * 2**10  # of every field except `request`; the longest valid `upto` has a quarter
_TOO_LONG = object()  # replaces a longer field: its type is wrong for every field

Entries = Sequence[Mapping[str, Any]]
"""Log-probabilities in OpenAI's shape, one entry for each token."""


def make(kind: str, **fields: object) -> str:
    """Return a frame with `fields`, of JSON or structs."""
    return orjson.dumps({"t": kind, **fields}, default=msgspec.to_builtins).decode()


class Accepted(NamedTuple):
    """A stream that a client reads behind the positions `after`, one for each choice.

    Attributes:
        last_numbers: those of the last tokens before `after`, for a client that has some.
        ttl_s: the seconds that it is kept without a reader, 0 if it is not kept.
        is_durable: whether it outlives the process.
        is_recovered: whether it went on after a restart where other tokens might come than before.
    """

    stream: str
    model: str
    after: Sequence[int]
    last_numbers: Sequence[int] = ()
    ttl_s: float = 0
    is_durable: bool = False
    is_recovered: bool = False


def accepted(client_id: str, what: Accepted) -> str:
    """Return the frame that says which stream is read, and from where."""
    kept = {"ttl_s": what.ttl_s, "n": len(what.after), "after": what.after, "durable": what.is_durable}
    recovered = {"recovered": True} if what.is_recovered else {}
    return make("accepted", id=client_id, stream=what.stream, model=what.model, **kept, **recovered)


ToolPieces = Sequence[Mapping[str, object]]
"""The field `tool`: `{"k", "id", "name"}` begins call k, `{"k", "a"}` is a piece of its arguments."""


def delta(
    client_id: str,
    event: TokenDelta,
    entries: Entries | None = None,
    *,
    reasoning: str = "",
    tool: ToolPieces = (),
) -> str:
    """Return the frame of new tokens, with their logprobs entries, reasoning and calls if there are any."""
    fields: dict[str, Any] = {
        "t": "delta",
        "id": client_id,
        "i": event.choice,
        "n": event.first,
        "k": len(event.token_ids),
        "x": event.text,
    }
    if reasoning:
        fields["r"] = reasoning
    if tool:
        fields["tool"] = tool
    if entries is not None:
        fields["lp"] = entries
    return orjson.dumps(fields).decode()


def done(client_id: str, usage: Usage, timings: StreamTimings, reasoning_tokens: int | None = None) -> str:
    """Return the frame that ends a stream whose choices have all ended."""
    figures = {name: round(value, 3) for name, value in timings._asdict().items()}
    return make("done", id=client_id, usage=UsageAnswer.of(usage, reasoning_tokens), timings=figures)


def error(client_id: str | None, info: ErrorInfo, *, is_fatal: bool = False) -> str:
    """Return the frame of a stream's error or, without `client_id`, of a frame's error."""
    stream = {} if client_id is None else {"id": client_id}
    fields = {"code": info.code, "status": info.http_status, "message": info.message, "param": info.param}
    return make("error", **stream, **fields, fatal=is_fatal)


class _Fields(msgspec.Struct):
    """The known fields; empty if the frame does not have them."""

    t: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    protocol: msgspec.Raw = msgspec.Raw()
    key: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()
    credit: msgspec.Raw = msgspec.Raw()
    upto: msgspec.Raw = msgspec.Raw()
    ttl_s: msgspec.Raw = msgspec.Raw()
    idempotency_key: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    ts: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Fields)


def read_frame(text: str) -> dict[str, Any]:
    """Return the known fields of a client's frame as Python objects, but `request` as the bytes of its JSON.

    Raises:
        ValueError: the frame is not one JSON object, or nested too deeply.
    """
    try:
        fields = _DECODER.decode(text)
        raws = {name: bytes(raw) for name in _Fields.__struct_fields__ if (raw := getattr(fields, name))}
        return {name: raw if name == "request" else _read_field(raw) for name, raw in raws.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _read_field(raw: bytes) -> object:
    return orjson.loads(raw) if len(raw) <= MAX_FIELD_BYTES else _TOO_LONG
