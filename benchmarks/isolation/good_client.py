"""The client whose figures count: one stream or none, `/livez` fifty times a second, and new requests."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import NamedTuple

import orjson

from app.loadgen.target import Target
from benchmarks.api_client import ApiClient
from benchmarks.isolation.new_requests import NewRequests
from benchmarks.piece_reader import PieceReader

MAX_TOKENS, WARM_UP_TOKENS = 30_000, 100
LIVEZ_EVERY_S = 0.02
HANG_S = 60.0


class Figures(NamedTuple):
    """Seconds between tokens, if there is a stream, and of `/livez`, the shortest first; the longest waits for first
    tokens by kind.
    """

    gaps: list[float]
    livez: list[float]
    waits: dict[str, float | None]

    def __str__(self) -> str:
        gap = f"longest gap between tokens {self.gaps[-1]:.1f} s, " if self.gaps else ""
        return f"{gap}longest answer of /livez {self.livez[-1]:.1f} s"


class GoodClient:
    """One stream, unless it has none, new requests, and one connection for `/livez` that stays open. Loop only."""

    def __init__(self, target: Target, has_stream: bool = True) -> None:
        self._target = target
        self._has_stream = has_stream
        self._stream = PieceReader()
        self._new = NewRequests(target)
        self._livez_s: list[float] = []
        self._livez_began: float | None = None

    def start(self) -> list[asyncio.Task[None]]:
        """Start to read and to ask for ever; a task ends when something has failed."""
        streams = [self.read_stream()] if self._has_stream else []
        return [asyncio.create_task(each) for each in (*streams, self.ask_livez(), self._new.run())]

    async def read_stream(self) -> None:
        """Read one stream after the other; the time to the first token of the next counts as one between tokens.

        Raises:
            RuntimeError: a stream is rejected or cut.
        """
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": MAX_TOKENS}
        payload = orjson.dumps(body | {"ignore_eos": True, "temperature": 1, "stream": True})
        message = self._target.post("/v1/chat/completions", payload)
        while True:
            await ApiClient(self._target, HANG_S).exchange(message, self._stream)
            if b"data: [DONE]" not in self._stream.tail:
                raise RuntimeError(f"the stream has failed: {self._stream.status} {self._stream.tail[-1000:]!r}")
            times, self._stream = self._stream.times, PieceReader()
            self._stream.times = times

    async def ask_livez(self) -> None:
        """Ask for ever."""
        reader, writer = await asyncio.open_connection(**self._target.connecting)
        head = self._target.head("GET", "/livez").replace("connection: close\r\n", "")
        try:
            while True:
                self._livez_began = began = time.perf_counter()
                writer.write(f"{head}\r\n".encode())
                found = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(found.partition(b"content-length: ")[2].split(b"\r\n")[0]))
                self._livez_s.append(took := time.perf_counter() - began)
                self._livez_began = None
                await asyncio.sleep(max(0.0, LIVEZ_EVERY_S - took))
        finally:
            writer.transport.abort()

    async def until_warm(self) -> None:
        """Wait until the stream, if there is one, flows and new requests of each kind have been answered.

        Raises:
            TimeoutError: that takes longer than HANG_S.
        """
        async with asyncio.timeout(HANG_S):
            while True:
                is_flowing = len(self._stream.times) >= WARM_UP_TOKENS or not self._has_stream
                if is_flowing and all(self._new.waits.values()):
                    return
                await asyncio.sleep(0.01)

    def begin(self) -> None:
        """Forget what was measured so far."""
        del self._stream.times[:-1]
        self._livez_s.clear()
        self._new.clear()

    def figures(self) -> Figures:
        """Return the figures of what was measured, and of what is still awaited as if it ended now."""
        now = time.perf_counter()
        gaps = [two - one for one, two in pairwise([*self._stream.times, now])] if self._has_stream else []
        open_s = [] if self._livez_began is None else [now - self._livez_began]
        return Figures(sorted(gaps), sorted([*self._livez_s, *open_s]), self._new.longest())
