"""What quire.v1 is, as tables: its frames, its states and what may happen in each, its close codes.

`ChatProtocol` goes by them, `docs/reference/websocket.md` is made from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

PROTOCOL = "quire.v1"


class Frame(NamedTuple):
    """One type of frame: its fields (`?`: may be missing) and what it says."""

    name: str
    fields: str
    meaning: str


CLIENT_FRAMES = (
    Frame(
        "hello",
        "protocol, key?",
        "Comes first, within 5 seconds and in at most 8 KiB. `protocol` is `quire.v1`; `key` is the API key, where one "
        "is needed and was not in a header.",
    ),
    Frame(
        "start",
        "id, request, credit?",
        "Start an answer. `id` is the client's (1 to 64 characters), `request` a chat body as over HTTP. `credit` is "
        "how many tokens of each choice may be sent before the first `credit` frame; without it 256, with 0 none.",
    ),
    Frame(
        "credit",
        "id, upto",
        "Tokens up to number `upto[i]` of choice i may be sent; one number for each choice (before `accepted` a list "
        "of another length counts as far as it goes). A number that is lower than an earlier one is ignored, so frames "
        "may be lost, doubled or out of order.",
    ),
    Frame(
        "cancel",
        "id",
        "End the answer. No more text comes; its open choices `finish` with `cancelled`, then `done`.",
    ),
    Frame("ping", "ts?", "Answered by `pong` with the same `ts` (a number)."),
    Frame("pong", "ts?", "The answer to the server's `ping`."),
)

SERVER_FRAMES = (
    Frame(
        "welcome",
        "server, limits, heartbeat_ms",
        "The answer to `hello`. `limits`: `max_streams`, `max_frame` and `max_request_bytes` in bytes, `window` "
        "(tokens that may be sent without any credit), `ttl_s` (seconds that streams outlive their socket; 0: they do "
        "not).",
    ),
    Frame(
        "accepted", "id, stream, model", "The engine has taken the request; `stream` is the server's id for the stream."
    ),
    Frame(
        "progress",
        "id, phase, done, total",
        "Where the request stands when its deltas do not say it: `queued`, `prefill`, `paused`, `preempted`, and "
        "`decode` when it goes on after that. `done` of its `total` tokens, prompt and answer so far, are computed.",
    ),
    Frame(
        "delta",
        "id, i, n, k, x, lp?",
        "`k` tokens of choice `i`, the first of them number `n` (counted from 1), and the text `x` that they released, "
        "possibly none. What was made while the reader was not ready comes in one delta, much of it in several. `lp` "
        "are OpenAI's logprobs entries where asked for: also those of tokens that ended the choice and are not told, "
        "so the last delta can have more than `k`.",
    ),
    Frame(
        "finish",
        "id, i, n, finish_reason",
        "Choice `i` has ended: `stop`, `length` or `cancelled`. `n` is the number of its last token that was sent.",
    ),
    Frame(
        "done",
        "id, usage, timings",
        "The end of the stream, after the `finish` of each choice. `usage` as OpenAI's; `timings`: `queue_ms`, "
        "`ttft_ms`, `prefill_tok_s`, `decode_tok_s` (all choices together), `itl_p50_ms` (choice 0).",
    ),
    Frame(
        "error",
        "id?, code, status, message, param, fatal",
        "The end of stream `id`, or without `id` a complaint about a frame; after a `fatal` one the socket is closed. "
        "Codes: [errors](errors.md).",
    ),
    Frame(
        "paused",
        "id",
        "Too much of the answer waits for credit, or for the connection: generation stops, nothing is lost.",
    ),
    Frame("resumed", "id", "Generation goes on."),
    Frame(
        "draining",
        "deadline_ms",
        "The server stops: open answers may end within `deadline_ms`, new ones are refused with `draining`. The socket "
        "is closed with 1012 once nothing is open.",
    ),
    Frame("ping", "ts", "Every `heartbeat_ms`, so that both sides notice a dead link."),
    Frame("pong", "ts", "The answer to the client's `ping`."),
)


class State(StrEnum):
    """Where a connection or one of its streams stands."""

    GREETING = "greeting"  # the connection waits for `hello`
    READY = "ready"
    DRAINING = "draining"  # the server stops
    CLOSED = "closed"
    UNKNOWN = "unknown"  # no stream has this id: never had, or it has ended
    STARTING = "starting"  # the request is being checked and submitted
    STREAMING = "streaming"
    PAUSED = "paused"  # generation waits for the client


CONNECTION_STATES = (State.GREETING, State.READY, State.DRAINING)
STREAM_STATES = (State.UNKNOWN, State.STARTING, State.STREAMING, State.PAUSED)
OF_STREAMS = ("start", "credit", "cancel")
"""The client's frames that are about one stream: its state decides, once the connection's has let them through."""

_OPEN = (State.STREAMING, State.PAUSED)

TRANSITIONS: dict[tuple[State, str], State] = {
    (State.GREETING, "hello"): State.READY,
    **{(state, frame): state for state in (State.READY, State.DRAINING) for frame in (*OF_STREAMS, "ping", "pong")},
    (State.READY, "draining"): State.DRAINING,
    **{(state, "close"): State.CLOSED for state in CONNECTION_STATES},
    #
    (State.UNKNOWN, "start"): State.STARTING,
    (State.STARTING, "credit"): State.STARTING,
    (State.STARTING, "cancel"): State.STARTING,
    (State.STARTING, "accepted"): State.STREAMING,
    (State.STARTING, "error"): State.UNKNOWN,
    **{(state, event): state for state in _OPEN for event in ("credit", "cancel", "progress", "delta", "finish")},
    **{(state, event): State.UNKNOWN for state in _OPEN for event in ("done", "error")},
    (State.STREAMING, "paused"): State.PAUSED,
    (State.PAUSED, "resumed"): State.STREAMING,
}
"""What may happen: a client's frame, or the server's own doing. Anything else a client sends, `REFUSALS` answers."""

CLOSE_BINARY = 1003
CLOSE_BAD_FRAMES = 1008
CLOSE_TOO_LARGE = 1009
CLOSE_RESTART = 1012
CLOSE_MALFORMED = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_SUBPROTOCOL = 4406
CLOSE_HELLO_TIMEOUT = 4408
CLOSE_DUPLICATE_ID = 4409
CLOSE_RATE = 4429
CLOSE_SLOW = 4499

CLOSE_CODES = {
    1000: "the client has said goodbye",
    1002: "no WebSocket protocol: unmasked, reserved bits, a broken frame",
    CLOSE_BINARY: "a binary frame",
    1007: "not UTF-8",
    CLOSE_BAD_FRAMES: "ten bad frames in a row, or a message of more than 1,000 fragments",
    CLOSE_TOO_LARGE: "a frame that is too large: of more than 8 KiB before `hello` is accepted, else `max_frame`",
    1011: "no answer to keep-alive pings",
    CLOSE_RESTART: "the server has stopped; connect again in a moment",
    CLOSE_MALFORMED: "a frame that is not one JSON object with `t`",
    CLOSE_UNAUTHENTICATED: "the key is missing or wrong, or another frame than `hello` came first",
    CLOSE_SUBPROTOCOL: "the subprotocol is not `quire.v1`",
    CLOSE_HELLO_TIMEOUT: "no `hello` in time",
    CLOSE_DUPLICATE_ID: "a `start` with an id that is in use",
    CLOSE_RATE: "too many messages, pings or credits, or replies that are not read",
    CLOSE_SLOW: "no credit came for `--stall-timeout`, for what waits",
}


class Refusal(NamedTuple):
    """What a frame that may not come now leads to: the socket's close, or an `error` frame (`code` 0), or nothing."""

    code: int | None
    reason: str


IGNORED = Refusal(None, "ignored")

REFUSALS: dict[tuple[State, str], Refusal] = {
    **{
        (State.GREETING, frame): Refusal(CLOSE_UNAUTHENTICATED, "the first frame must be hello")
        for frame in (*OF_STREAMS, "ping", "pong")
    },
    (State.READY, "hello"): Refusal(0, "hello has been said"),
    (State.DRAINING, "hello"): Refusal(0, "hello has been said"),
    (State.UNKNOWN, "credit"): IGNORED,
    (State.UNKNOWN, "cancel"): IGNORED,
    **{
        (state, "start"): Refusal(CLOSE_DUPLICATE_ID, "start: the id is in use")
        for state in (State.STARTING, *_OPEN)
    },
}  # fmt: skip
