"""The envelopes of OpenAI's streams: server-sent events, and lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers

from app.streaming import sse_format


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes around and between the payloads of one kind of stream."""

    media_type: str
    before: bytes
    after: bytes
    heartbeat: bytes
    end: bytes

    def wrap(self, payload: bytes) -> bytes:
        """Return one payload (JSON without line breaks) with its framing."""
        return self.before + payload + self.after


SSE = Framing("text/event-stream; charset=utf-8", b"data: ", b"\n\n", sse_format.HEARTBEAT, sse_format.DONE)
NDJSON = Framing("application/x-ndjson", b"", b"\n", b"\n", b"")


def choose_framing(headers: Headers) -> Framing:
    """Return the framing that a client accepts: NDJSON if `Accept` names it, else SSE."""
    accepted = [part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")]
    return NDJSON if NDJSON.media_type in accepted else SSE
