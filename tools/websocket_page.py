"""The page of quire.v1, made from the tables of the protocol (`app/streaming/chat_table.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from app.streaming.chat_protocol import ChatLimits
from app.streaming.chat_table import (
    CLIENT_FRAMES,
    CLOSE_CODES,
    CONNECTION_STATES,
    OF_STREAMS,
    REFUSALS,
    SERVER_FRAMES,
    STREAM_STATES,
    TRANSITIONS,
    Frame,
    State,
)
from app.streaming.flow.flow_window import Watermarks

# Frames that the server sends for a stream, in the usual order.
STREAM_EVENTS = ("accepted", "progress", "delta", "paused", "resumed", "finish", "done", "error")


def websocket_page() -> str:
    """Return the page, without its first line."""
    limits, marks = ChatLimits(), Watermarks()
    return "\n".join(
        [
            _HEAD,
            "## From the client\n",
            *_frames(CLIENT_FRAMES),
            "\n## From the server\n",
            *_frames(SERVER_FRAMES),
            _RULES.format(
                window=limits.window,
                high=marks.high_tokens,
                kib=marks.high_bytes // 1024,
                low=marks.low_tokens,
                low_kib=marks.low_bytes // 1024,
                full_kib=marks.full_bytes // 1024,
            ),
            "## States\n",
            _MATRIX,
            *_matrix([frame.name for frame in CLIENT_FRAMES], CONNECTION_STATES),
            "",
            *_matrix(OF_STREAMS, STREAM_STATES),
            "\nFrames that the server sends for a stream, by the state of the stream:\n",
            *_matrix(STREAM_EVENTS, STREAM_STATES),
            _LIMITS.format(limits=limits, heartbeat_s=limits.heartbeat_ms // 1000),
            "| close code | reason |",
            "|---|---|",
            *[f"| {code} | {meaning} |" for code, meaning in CLOSE_CODES.items()],
            _END,
        ]
    )


def _frames(frames: Sequence[Frame]) -> list[str]:
    rows = [f"| `{frame.name}{{{frame.fields}}}` | {frame.meaning} |" for frame in frames]
    return ["| frame | meaning |", "|---|---|", *rows]


def _matrix(events: Sequence[str], states: Sequence[State]) -> list[str]:
    head = ["| | " + " | ".join(state.value for state in states) + " |", "|---|" + "---|" * len(states)]
    return head + [f"| `{event}` | " + " | ".join(_cell(state, event) for state in states) + " |" for event in events]


def _cell(state: State, event: str) -> str:
    if (state, event) in TRANSITIONS:
        return TRANSITIONS[state, event].value
    refusal = REFUSALS.get((state, event))
    if refusal is None:
        return "-"
    return {None: "ignored", 0: "`error`"}.get(refusal.code, f"closes {refusal.code}")


_HEAD = """# quire.v1

Several streams at once over one WebSocket, with flow control, cancellation and progress. The path is `/ws`, the
subprotocol `quire.v1`. Each text frame contains one JSON object, with its type in `t`. `app/client` is a small Python
client; `tests/vectors/quire_v1.json` contains test cases for clients, frame by frame.

```text
client: {"t": "hello", "protocol": "quire.v1"}
server: {"t": "welcome", "server": "quire", "limits": {"max_streams": 32, "window": 256, ...}, "heartbeat_ms": 15000}
client: {"t": "start", "id": "a", "request": {"messages": [{"role": "user", "content": "Hello"}]}}
server: {"t": "accepted", "id": "a", "stream": "chatcmpl-...", "model": "guide"}
server: {"t": "delta", "id": "a", "i": 0, "n": 1, "k": 1, "x": "Hi"}
client: {"t": "credit", "id": "a", "upto": [400]}
...
server: {"t": "finish", "id": "a", "i": 0, "n": 290, "finish_reason": "stop"}
server: {"t": "done", "id": "a", "usage": {...}, "timings": {...}}
```
"""

_RULES = """
## Rules

**Numbers.** Tokens are numbered per choice, 1, 2, 3 ... without gaps: the next `delta` of a choice starts at n + k. The
choices of a request (`n`) are one stream; deltas of different choices come in any order. Choices that must be compared
first (`best_of` above `n`, beam search) come at the end, each in one delta.

**Credit.** The server sends no token beyond the client's credit. This limits the data for a page that renders slowly or
not at all, because a browser receives all data that arrives. Raise the credit as text is shown, at the latest when
{window} tokens were sent since the last `credit`. An `upto` far above the end of the output removes the limit.

**Slow readers.** Generated tokens that cannot be sent, without credit or because the connection accepts no bytes, are
pending. At {high} tokens or {kib} KiB, `stream_options.slow_reader` of the request decides:

| `slow_reader` | action |
|---|---|
| `pause` (default) | `paused`: generation stops, KV blocks are kept; `resumed` at {low} tokens and {low_kib} KiB |
| `coalesce` | generation continues, merged, up to {full_kib} KiB; then `paused`, and `resumed` at half of that |
| `drop` | the stream ends with `error`, code `overloaded`; the socket stays open |

With every policy, a client that has read nothing for `--stall-timeout` while data is pending is disconnected, and its
streams are aborted. If the client sends no credit, the socket is closed with 4499. If the connection accepts no bytes,
it is reset, because a close frame would not arrive. Other clients are not slowed down.

**Fairness.** Streams of a socket take turns, one frame each; `welcome`, `accepted`, `error`, `done`, `paused`,
`resumed`, `draining` and `pong` are sent before the deltas of other streams. The order within a stream is kept.

**Ends.** A stream ends with exactly one `done` or `error`; then its id may be used again. Frames for unknown or ended
ids are ignored, because a client may send them before it receives the end. Closing the socket ends all its streams. An
`error` for an invalid frame has no id if a stream with that id is open, because it would end the stream. The server
logs each stream separately ([HTTP](http.md#log)), with its server-side id.

**Unknown fields** of a known frame are ignored; an unknown `t` is an `error`. Streams end with their socket: this
version has no resume.
"""

_MATRIX = """Frames of the client by the state of the connection, then those of a stream by the state of the stream. An
entry with a state means that the frame is accepted and leads to that state.
"""

_LIMITS = """
## Limits and close codes

{limits.max_streams} open streams; {limits.messages_per_s:g} messages per second ({limits.messages_burst:g} in a burst)
without `credit`; {limits.credits_per_s:g} `credit` per second for each open stream ({limits.credits_burst:g} in a
burst); {limits.pings_per_s:g} JSON pings and as many WebSocket pings per second; a message of at most
`--max-request-bytes`, in at most 1,000 fragments. The server sends a heartbeat every {heartbeat_s} seconds; a
connection without one for twice that time is dead. WebSocket pings are sent every 20 seconds, and must be answered
within `--stall-timeout` plus 10 seconds, at least 30 seconds.
"""

_END = """
A rejected handshake is an HTTP status with the usual body: 401 (a wrong key in a header), 403 (a foreign `Origin`; an
absent one is allowed, others with `--allowed-origins`), 503 (draining).
"""
