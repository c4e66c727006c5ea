"""The page of quire.v1, made from the protocol's own tables (`app/streaming/chat_table.py`)."""

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

# The server's own doings of a stream, in the order of its life.
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
            "## What may come when\n",
            _MATRIX,
            *_matrix([frame.name for frame in CLIENT_FRAMES], CONNECTION_STATES),
            "",
            *_matrix(OF_STREAMS, STREAM_STATES),
            "\nWhat the server says of a stream, by the stream's state:\n",
            *_matrix(STREAM_EVENTS, STREAM_STATES),
            _LIMITS.format(limits=limits, heartbeat_s=limits.heartbeat_ms // 1000),
            "| code | the socket is closed because |",
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

Several answers at once over one WebSocket, with flow control, cancel and progress. Path `/ws`, subprotocol `quire.v1`,
one JSON object per text frame, its type in `t`. `app/client` is a small Python client; `tests/vectors/quire_v1.json`
says what a client must do, frame by frame.

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
choices of a request (`n`) are one stream; their deltas come in any order among them. Choices that must be compared
first (`best_of` above `n`, beam search) come at the end, each at once.

**Credit.** The server sends no token beyond the client's credit. So a page that paints slowly, or not at all, is not
flooded: a browser takes whatever arrives, however little of it is shown. Raise it as text is used up, at the latest
when {window} tokens were sent since the last time; an `upto` far above the end of the answer takes the limit away.

**Slow readers.** What was generated and could not be sent, for want of credit or because the connection takes no bytes,
waits. From {high} tokens or {kib} KiB on (`stream_options.slow_reader` of the request):

| `slow_reader` | what happens |
|---|---|
| `pause` (if left out) | `paused`: generation stops, its KV blocks stay; at {low} tokens and {low_kib} KiB `resumed` |
| `coalesce` | generation goes on until {full_kib} KiB wait, merged; then `paused`, and `resumed` at half of that |
| `drop` | the stream ends with `error`, code `overloaded`; the socket stays |

Whatever the policy, a client that takes nothing of what waits for `--stall-timeout` is cut, and its streams are
aborted: without credit the socket is closed with 4499; where it takes no bytes it is reset, for no close would get
through. Nobody else is slowed down.

**Fairness.** Streams of a socket take turns, one frame each; `welcome`, `accepted`, `error`, `done`, `paused`,
`resumed`, `draining` and `pong` go before the deltas of other streams. Within a stream the order is kept.

**Ends.** Exactly one of `done` and `error` ends a stream; then its id may be used again. Frames about unknown or ended
ids are ignored: the client could not know yet. Closing the socket ends all its streams. An `error` for a bad frame
names no id while a stream with it is open, for that would be the stream's end. In the server's log each stream leaves
a line of its own ([HTTP](http.md#log)), with its server-side id.

**Unknown fields** of a known frame are ignored, an unknown `t` is an `error`. There is no resume in this version:
streams end with their socket.
"""

_MATRIX = """A frame of the client, by the state of the connection; those about a stream then by the stream's state. A
state means: taken, and this is the state after it.
"""

_LIMITS = """
## Limits and close codes

{limits.max_streams} open streams; {limits.messages_per_s:g} messages a second ({limits.messages_burst:g} in a burst)
besides `credit`; {limits.credits_per_s:g} `credit` a second for each open stream ({limits.credits_burst:g} in a
burst); {limits.pings_per_s:g} pings a second, of JSON and of WebSocket each; a message as large as
`--max-request-bytes`, in at most 1,000 fragments. Heartbeats come every {heartbeat_s} seconds; a link without one for
twice as long is dead. WebSocket pings come every 20 seconds, and must be answered within `--stall-timeout` and 10
seconds, at least within 30.
"""

_END = """
Before the upgrade a refusal is an HTTP status with the usual body: 401 (a wrong key in a header), 403 (a foreign
`Origin`; an absent one is allowed, others with `--allowed-origins`), 503 (draining).
"""
