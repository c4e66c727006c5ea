"""The process of a server's clients: as many streams all the time, each asked for again when it has ended."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any

import orjson
import uvloop

from app.loadgen.figures import percentile
from benchmarks.api_client import ApiClient
from benchmarks.gpu.loads import TEMPERATURE
from benchmarks.live.spent import Spent
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import local_target
from benchmarks.streams.control import Rejected, serve_requests, take_output

NUM_PROMPT = 64
VOCAB_SIZE = 3072  # those of `guide` behind them are not needed
TOKENS = b"vllm:generation_tokens_total"
ANSWER_S = 60.0
BODY = {"temperature": TEMPERATURE, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class TimedReader(PieceReader):
    """Takes an answer, and adds the seconds between its pieces to `gaps`."""

    def __init__(self, gaps: list[float]) -> None:
        super().__init__()
        self._gaps = gaps

    def feed(self, piece: bytes, now: float) -> None:
        super().feed(piece, now)
        if len(self.times) > 1:
            self._gaps.append(self.times[-1] - self.times[-2])
            self.times = self.times[-1:]


class Streams:
    """The requests of the benchmark: the streams begin, and turns are measured while they go on.

    Attributes:
        streams: those that have begun; none ends but by an error.
    """

    def __init__(self, port: int, pid: int) -> None:
        self._target, self._pid = local_target(port), pid
        self._client = ApiClient(self._target, ANSWER_S)
        self._gaps: list[float] = []
        self.streams: list[asyncio.Task[None]] = []

    async def begin(self, num_streams: int, num_new: int) -> dict[str, Any]:
        """Ask for the streams; the answer comes when each has read an answer.

        The first answers have different lengths, so that there are always as many long texts as short ones.
        """
        begun = [asyncio.Event() for _ in range(num_streams)]
        for number, event in enumerate(begun):
            first = num_new * (number + 1) // num_streams
            self.streams.append(asyncio.create_task(self._stream(number, first, num_new, event)))
        waiting: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in begun))
        await asyncio.wait([waiting, *self.streams], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._check()
        return {}

    async def turn(self, seconds: float) -> dict[str, Any]:
        """Return what the server has spent in so many seconds, and for how many tokens."""
        began, before, num_before = await self._read()
        self._gaps.clear()
        await asyncio.sleep(seconds)
        p99_s = percentile(sorted(self._gaps), 0.99)
        ended, spent, num_tokens = await self._read()
        self._check()
        return {
            "spent": spent.since(before),
            "num_tokens": num_tokens - num_before,
            "seconds": ended - began,
            "p99_ms": 1000 * p99_s,
        }

    async def _stream(self, number: int, first: int, num_new: int, has_read: asyncio.Event) -> None:
        """Read answer after answer to one prompt, which is in the prefix cache from the second on."""
        prompt = random.Random(number).choices(range(VOCAB_SIZE), k=NUM_PROMPT)
        while True:
            num_tokens = num_new if has_read.is_set() else first
            fields = BODY | {"prompt": prompt, "max_tokens": num_tokens}
            payload, reader = orjson.dumps(fields), TimedReader(self._gaps)
            await self._client.exchange(self._target.post("/v1/completions", payload), reader)
            if reader.num_tokens() != num_tokens:
                raise Rejected(f"an answer of {num_tokens} tokens ended early: {reader.tail[-500:]!r}")
            has_read.set()

    def _check(self) -> None:
        """Raise what has ended a stream."""
        for task in self.streams:
            if task.done():
                task.result()

    async def _read(self) -> tuple[float, Spent, float]:
        """Return the time, what the server has spent, and how many tokens it has generated."""
        now, spent = time.perf_counter(), Spent.by(self._pid)
        lines = (await self._client.get("/metrics")).content.splitlines()
        return now, spent, sum(float(line.split()[-1]) for line in lines if line.startswith(TOKENS))


async def serve(port: int, pid: int, answers: int) -> None:
    """Serve the benchmark's requests until its pipe ends."""
    streams = Streams(port, pid)
    await serve_requests({"begin": streams.begin, "turn": streams.turn}, answers)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), take_output()))
