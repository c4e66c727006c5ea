"""The cells of the benchmark: each is a server, streams of one or two kinds, and a token rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.streams.client_group import MESSAGES, NDJSON, RESPONSES, RESUMABLE, SSE, WEBSOCKET, WEBSOCKET_RESUMABLE

QUIRE, BARE, MODEL = "quire", "bare", "guide"  # the kinds of server
SATURATED_CONNECTIONS = 64
# The bare protocol would be faster than any client, and its events would go out many at a time.
BARE_FULL_RATE = 1000.0
MAX_PER_SOCKET = 32  # streams on one WebSocket; the server allows no more
MAX_RESUMABLE = 500  # of one account; the server keeps no more than 512
MODEL_STREAMS = 16
SLOW_CLIENTS = 200
SLOW_RATE_FACTOR = 4


class Part(NamedTuple):
    """Streams of one kind."""

    kind: str
    num_streams: int
    per_socket: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement. `rate` is steps per second; None is as many as the server can take."""

    name: str
    title: str
    parts: tuple[Part, ...]
    rate: float | None
    serve: str = QUIRE
    has_slow_clients: bool = False

    @property
    def num_streams(self) -> int:
        """How many streams there are."""
        return sum(part.num_streams for part in self.parts)


def make_cells(num_streams: int, rate: float) -> tuple[Cell, ...]:
    """Return all cells: `num_streams` of each kind side by side, half as many of one kind alone.

    The cells with slow clients have a fifth as many, at a rate that shows in times between tokens.
    """
    alone = max(1, num_streams // 2)
    full = min(SATURATED_CONNECTIONS, num_streams)
    slow = max(1, num_streams * SLOW_CLIENTS // 1000 // 2)

    many = f"WebSocket, {MAX_PER_SOCKET} streams each"

    def one(name: str, title: str, part: Part, pace: float | None = rate, serve: str = QUIRE) -> Cell:
        return Cell(name=name, title=title, parts=(part,), rate=pace, serve=serve)

    return (
        Cell(
            name="both", title="SSE and WebSocket side by side",
            parts=(Part(SSE, num_streams), Part(WEBSOCKET, num_streams)), rate=rate,
        ),
        one("sse", "SSE", Part(SSE, alone)),
        one("resumable", "SSE, resumable", Part(RESUMABLE, min(alone, MAX_RESUMABLE))),
        one("ws", "WebSocket, a stream each", Part(WEBSOCKET, alone)),
        one("ws-resumable", "WebSocket, resumable", Part(WEBSOCKET_RESUMABLE, min(alone, MAX_RESUMABLE))),
        one("ws-many", many, Part(WEBSOCKET, alone, MAX_PER_SOCKET)),
        one("ndjson", "NDJSON", Part(NDJSON, alone)),
        one("responses", "SSE of responses", Part(RESPONSES, alone)),
        one("messages", "SSE of messages", Part(MESSAGES, alone)),
        one("bare", "bare protocol", Part(SSE, alone), serve=BARE),
        one("sse-saturated", "SSE", Part(SSE, full), None),
        one("resumable-saturated", "SSE, resumable", Part(RESUMABLE, full), None),
        one("ws-saturated", "WebSocket, a stream each", Part(WEBSOCKET, full), None),
        one("ws-resumable-saturated", "WebSocket, resumable", Part(WEBSOCKET_RESUMABLE, full), None),
        one("ws-many-saturated", many, Part(WEBSOCKET, full, MAX_PER_SOCKET), None),
        one("ndjson-saturated", "NDJSON", Part(NDJSON, full), None),
        one("responses-saturated", "SSE of responses", Part(RESPONSES, full), None),
        one("messages-saturated", "SSE of messages", Part(MESSAGES, full), None),
        one("bare-saturated", "bare protocol", Part(SSE, full), BARE_FULL_RATE, BARE),
        Cell(
            name="slow", title="with slow and vanishing clients", parts=(Part(SSE, slow), Part(WEBSOCKET, slow)),
            rate=rate * SLOW_RATE_FACTOR, has_slow_clients=True,
        ),
        Cell(
            name="guide", title="the embedded model",
            parts=(Part(SSE, MODEL_STREAMS // 2), Part(WEBSOCKET, MODEL_STREAMS // 2)), rate=None, serve=MODEL,
        ),
    )  # fmt: skip
