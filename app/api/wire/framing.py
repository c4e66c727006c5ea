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
    has_ids: bool = False

    def wrap(self, payload: bytes) -> bytes:
        """Return one payload (JSON without line breaks) with its framing."""
        return self.before + payload + self.after

    def split(self, events: bytes) -> list[bytes]:
        """Return the events of which `events` are joined; their payloads are JSON, so no end of an event is in one."""
        return [event + self.after for event in events.split(self.after)[:-1]]

    def numbered(self, events: bytes, position: bytes) -> bytes:
        """Return events, one or more, whose payloads are objects, with a reader's position: in the first field of each
        payload, and in the id of SSE.
        """
        head = self.before + b'{"after":"%b",' % position
        if self.has_ids:
            head = b"id: %b\n" % position + head
        # What ends an event is in no payload, so this is where the others begin.
        others = events[len(self.before) + 1 :].replace(self.after + self.before + b"{", self.after + head)
        return head + others

    @property
    def numbered_end(self) -> bytes:
        """The end of a stream whose events are numbered."""
        return b"id: end\n" + self.end if self.has_ids else self.end


SSE = Framing(
    "text/event-stream; charset=utf-8", b"data: ", b"\n\n", sse_format.HEARTBEAT, sse_format.DONE, has_ids=True
)
NDJSON = Framing("application/x-ndjson", b"", b"\n", b"\n", b"")


def choose_framing(headers: Headers) -> Framing:
    """Return the framing that a client accepts: NDJSON if `Accept` names it, else SSE."""
    accepted = [part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")]
    return NDJSON if NDJSON.media_type in accepted else SSE
