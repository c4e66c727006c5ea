"""The page of quire.v1: its frames and close codes, and the tables of the protocol (`app/streaming/chat_table.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.streaming import chat_table
from app.streaming.chat_actions import ChatLimits
from app.streaming.chat_table import CONNECTION_STATES, OF_STREAMS, REJECTIONS, STREAM_STATES, TRANSITIONS, State
from app.streaming.flow.flow_window import Watermarks
from app.streaming.kept.kept_streams import MAX_TTL_S
from app.streaming.kept.live_stream import MAX_READERS


class Frame(NamedTuple):
    """One type of frame: its fields (`?`: optional) and its meaning."""

    name: str
    fields: str
    meaning: str


CLIENT_FRAMES = (
    Frame(
        "hello",
        "protocol, key?",
        "The first frame, within 5 seconds, at most 8 KiB. `protocol` is `quire.v1`; `key` is the API key, if one "
        "is needed and was not in a header.",
    ),
    Frame(
        "start",
        "id, request, credit?, ttl_s?, idempotency_key?",
        "Start an answer. `id` is the client's (1 to 64 characters), `request` a chat body as over HTTP. `credit` is "
        "how many tokens of each choice may be sent before the first `credit` frame; without it 256, with 0 none. "
        f"`ttl_s` is how many seconds the answer is kept while nobody reads it, at most {MAX_TTL_S:,}; with 0, the "
        "default, it ends with its socket. `idempotency_key` is a text of 1 to 255 visible ASCII characters: a `start` "
        "with the same key and request reads the answer of the first one ([keys](#resuming)).",
    ),
    Frame(
        "resume",
        "id, stream, after, credit?",
        "Read a kept answer, also one that has ended or that others read. `stream` is that of its `accepted` or, over "
        "HTTP, the id of the answer; `after` is how far the client has it, a [position](#resuming) for each choice. "
        "`credit` counts from there, as in `start`.",
    ),
    Frame(
        "credit",
        "id, upto",
        "Tokens up to number `upto[i]` of choice i may be sent; one number for each choice (before `accepted`, extra "
        "numbers are ignored and missing ones change nothing). A number that is lower than an earlier one is ignored, "
        "so frames may be lost, doubled or out of order.",
    ),
    Frame(
        "cancel",
        "id",
        "End the answer, for all its readers. No more text comes; its open choices `finish` with `cancelled`, then "
        "`done`. Other readers get what was told before that.",
    ),
    Frame(
        "detach",
        "id",
        "Read an answer no longer. There is no reply, and the id is free at once; frames that come nevertheless are of "
        "the answer that was left, so a client uses ids once. The answer goes on if it is kept, else it is aborted.",
    ),
    Frame("ping", "ts?", "Answered by `pong` with the same `ts` (a number)."),
    Frame("pong", "ts?", "The answer to the server's `ping`."),
)

SERVER_FRAMES = (
    Frame(
        "welcome",
        "server, limits, heartbeat_ms",
        "The answer to `hello`. `limits`: `max_streams`, `max_frame` and `max_request_bytes` in bytes, `window` "
        "(tokens that may be sent without any credit), `ttl_s` (the most seconds that answers outlive their socket; 0: "
        "they do not).",
    ),
    Frame(
        "accepted",
        "id, stream, model, ttl_s, n, after, durable, recovered?",
        "The answer to `start` and `resume`: the request is submitted, and its answer read. `stream` is the server's "
        "id for the stream, `ttl_s` how long it is kept while nobody reads it (0: it ends with the socket, also where "
        "there was no memory to keep it), `n` the number of choices, `after` the position of this reader in each. "
        "`durable` says whether the answer outlives the server's process ([journal](../durable.md)); `recovered` is "
        "there, and true, where it went on in another process that may choose other tokens.",
    ),
    Frame(
        "progress",
        "id, phase, done, total, ahead?",
        "The progress of a request when its deltas do not show it: `queued`, `prefill`, `paused`, `preempted`, and "
        "`decode` when it continues after that. `done` of its `total` tokens, prompt and answer so far, are computed. "
        "`ahead`, while `queued` before the first token, is how many requests are before this one in the order of "
        "`--scheduling-policy`. The first eight that wait are told each change; a place further back is that at which "
        "the request joined.",
    ),
    Frame(
        "delta",
        "id, i, n, k, x, r?, tool?, lp?",
        "`k` tokens of choice `i`, the first of them number `n` (counted from 1), and the text `x` that they complete, "
        "possibly none. Tokens that were pending are merged into one delta, or into several if they are many. `lp` "
        "contains OpenAI's logprobs entries if they were requested, including those of tokens that ended the choice, "
        "which `k` does not count: the last delta can have more than `k` entries. `r` is text of the model's "
        "reasoning. `tool` is a list of what the delta has of calls, in order: `{k, id, name}` begins call `k` of the "
        "answer, `{k, a}` is a piece of its arguments. Text is only in `x`, which may be empty then. The last delta of "
        "a choice can be without tokens.",
    ),
    Frame(
        "finish",
        "id, i, n, finish_reason",
        "Choice `i` has ended: `stop`, `length`, `tool_calls` or `cancelled`. `n` is the number of its last token that "
        "was sent.",
    ),
    Frame(
        "done",
        "id, usage, timings",
        "The end of the stream, after the `finish` of each choice. `usage` as in OpenAI's API; `timings`: `queue_ms`, "
        "`ttft_ms`, `prefill_tok_s`, `decode_tok_s` (all choices together), `itl_p50_ms` (choice 0).",
    ),
    Frame(
        "error",
        "id?, code, status, message, param, fatal",
        "The end of stream `id`, or without `id` the error of a frame; after a `fatal` one the socket is closed. "
        "Codes: [errors](errors.md).",
    ),
    Frame(
        "paused",
        "id",
        "Too much of the answer is pending, without credit or because the connection accepts no bytes: generation "
        "stops, nothing is lost.",
    ),
    Frame("resumed", "id", "Generation continues."),
    Frame(
        "draining",
        "deadline_ms",
        "The server is shutting down: open answers may end within `deadline_ms`, new ones are rejected with "
        "`draining`. The socket is closed with 1012 when no answer is open.",
    ),
    Frame("ping", "ts", "Sent every `heartbeat_ms`, so that both sides detect a dead connection."),
    Frame("pong", "ts", "The answer to the client's `ping`."),
)

CLOSE_CODES = {
    1000: "closed by the client",
    1002: "invalid WebSocket protocol: unmasked, reserved bits, a broken frame",
    chat_table.CLOSE_BINARY: "a binary frame",
    1007: "invalid UTF-8",
    chat_table.CLOSE_BAD_FRAMES: "ten bad frames in a row, or a message of more than 1,000 fragments",
    chat_table.CLOSE_TOO_LARGE: "a frame of more than 8 KiB before `hello` is accepted, or of more than `max_frame`",
    1011: "no answer to keep-alive pings",
    chat_table.CLOSE_RESTART: "the server has stopped; connect again later",
    chat_table.CLOSE_MALFORMED: "a frame that is not one JSON object with `t`",
    chat_table.CLOSE_UNAUTHENTICATED: "the key is missing or wrong, or the first frame was not `hello`",
    chat_table.CLOSE_SUBPROTOCOL: "the subprotocol is not `quire.v1`",
    chat_table.CLOSE_HELLO_TIMEOUT: "no `hello` in time",
    chat_table.CLOSE_DUPLICATE_ID: "a `start` or `resume` with an id that is in use",
    chat_table.CLOSE_RATE: "too many messages, pings or credits, or replies that are not read",
    chat_table.CLOSE_SLOW: "data is pending, and no credit came for `--stall-timeout`",
}

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
                readers=MAX_READERS,
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
    rejection = REJECTIONS.get((state, event))
    if rejection is None:
        return "-"
    return {None: "ignored", 0: "`error`"}.get(rejection.code, f"closes {rejection.code}")


_HEAD = """# quire.v1

Several streams at once over one WebSocket, with flow control, cancellation and progress. The path is `/ws`, the
subprotocol `quire.v1`. Each text frame contains one JSON object, with its type in `t`. `app/client` is a small Python
client; `tests/vectors/quire_v1.json` contains test cases for clients, frame by frame.

```text
client: {"t": "hello", "protocol": "quire.v1"}
server: {"t": "welcome", "server": "quire", "limits": {"max_streams": 32, "window": 256, ...}, "heartbeat_ms": 15000}
client: {"t": "start", "id": "a", "request": {"messages": [{"role": "user", "content": "Hello"}]}}
server: {"t": "accepted", "id": "a", "stream": "chatcmpl-...", "model": "guide", ...}
server: {"t": "delta", "id": "a", "i": 0, "n": 1, "k": 1, "x": "Hi"}
client: {"t": "credit", "id": "a", "upto": [400]}
...
server: {"t": "finish", "id": "a", "i": 0, "n": 290, "finish_reason": "stop"}
server: {"t": "done", "id": "a", "usage": {...}, "timings": {...}}
```
"""

_RULES = """
## Rules

**Numbers.** Tokens are numbered per choice, 1, 2, 3 ... without gaps: the next `delta` of a choice starts at n + k, or
at n + 1 behind one without tokens. The choices of a request (`n`) are one stream; deltas of different choices come in
any order. Choices that must be compared first (`best_of` above `n`, beam search) come at the end, each in one delta.

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
streams are aborted unless they are kept. If the client sends no credit, the socket is closed with 4499. If the
connection accepts no bytes, it is reset, because a close frame would not arrive. Other clients are not slowed down.

**Fairness.** Streams of a socket take turns, one frame each; `welcome`, `accepted`, `error`, `done`, `paused`,
`resumed`, `draining` and `pong` are sent before the deltas of other streams. The order within a stream is kept.

**Ends.** A stream ends with exactly one `done` or `error`; then its id may be used again. Frames for unknown or ended
ids are ignored, because a client may send them before it receives the end. Closing the socket ends its streams; those
that are kept go on without it. An `error` for an invalid frame has no id if a stream with that id is open, because it
would end the stream. The server logs each stream separately ([HTTP](http.md#log)), with its server-side id.

**Unknown fields** of a known frame are ignored; an unknown `t` is an `error`.

## Resuming

An answer that is started with `ttl_s` or `idempotency_key` belongs to its stream and not to its socket. It goes on when
the socket is gone, and whoever comes back with `stream` and the position in each choice gets every later token once:

```text
client: {{"t": "start", "id": "a", "request": {{...}}, "ttl_s": 300}}
server: {{"t": "accepted", "id": "a", "stream": "chatcmpl-...", "ttl_s": 300, "n": 1, "after": [0], ...}}
server: {{"t": "delta", "id": "a", "i": 0, "n": 1, "k": 2, "x": "Once upon"}}
(the connection is lost; on the next one, after `welcome`:)
client: {{"t": "resume", "id": "b", "stream": "chatcmpl-...", "after": [2]}}
server: {{"t": "accepted", "id": "b", "stream": "chatcmpl-...", "ttl_s": 300, "n": 1, "after": [2], ...}}
server: {{"t": "delta", "id": "b", "i": 0, "n": 3, "k": 1, "x": " a"}}
```

**Positions.** A client's position in a choice is the number of its last token, n + k - 1 of the last `delta`. A `delta`
without tokens has a position of its own, n. The text that a reader has at a position is the same for all of them, and
those of [HTTP](http.md#resuming) are the same numbers: an answer that was started there is read here, and the other way
round. Behind `accepted` come the deltas behind `after`, then the ends as for a first reader: `finish` of each choice,
also of those whose `finish` the client has, and `done` or `error`.

**Readers.** A `resume` is a further reader and takes nothing from the others. A stream has at most {readers} readers,
each with its own credit; generation pauses when all of them lag, and never for want of a reader. With `drop`, a reader
that lags ends with `overloaded`, and the stream goes on.

**Errors.** An unknown `stream`, one that is not kept any longer and one of another key end the id with
`stream_not_found`, all with the same frame; positions that were not told, or of another number of choices, with
`invalid_value`; a ninth reader with `rate_limit_exceeded`. It should try again later: connections that were lost count
until the server has noticed, with the default `--stall-timeout` for about a minute. The socket stays.

**Keys.** A `start` whose `accepted` did not arrive can be sent again with its `idempotency_key`: the answer of the
first one is read from its beginning, whether it runs or has ended. A first one that was rejected is forgotten, and the
next one is answered. To end an answer whose `accepted` did not arrive, send its `start` again, and `cancel` behind it:
that counts also if the socket ends at once. Another request under the key is rejected with `idempotency_conflict`. Keys
are those of `/ws`, of one API key or, on a server without keys, of one client address. With a key, an answer is kept
for 300 s if `ttl_s` is 0. A key is forgotten with its answer.

How much is kept, and how long, is that of [HTTP](http.md#resuming): up to `--resume-memory`, and for `ttl_s` from when
the last reader left. While the server drains, `resume` and `detach` are accepted as ever; a new socket is not.

**Clients.** The chat page does all that by itself. So does the Python client, whose readers only wait:

```python
from app.client.client import connect


async def main() -> None:
    async with connect("http://127.0.0.1:8000", reconnect=True) as client:
        answer = await client.chat([{{"role": "user", "content": "Tell me a story."}}])
        async for text in answer:
            print(text, end="")
```

It tries again after 0.25 s on average, then after up to 8 s, and gives up when there was no `welcome` for 60 s. It does
not come back after a close that it has caused (1000, 1003, 1007 to 1009, 4400, 4401, 4406, 4409), after 4429 not for
8 s, and after 4499 when somebody reads. An answer that has eight readers is asked for again after such times, too. At
the end of the block open answers are cancelled; while the connection is away, that waits for up to 5 s for another one.
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
