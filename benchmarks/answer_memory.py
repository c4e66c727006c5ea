"""Memory of a server for outgoing data: the largest response, and unread responses.

`python -m benchmarks answer_memory` starts a server on `long` (see checkpoints.py), and prints by how much its peak
resident memory grows, beside the limit; it exits 1 when one is missed. Linux only. It counts bytes and takes no times,
except those of `/livez`, for information.

- The largest response: n=16, top_logprobs=20, 1,900 tokens each, streamed and not streamed.
- Unread: clients that request long outputs with log-probabilities and read nothing, under each policy. They are bare
  sockets, since any client would read.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from app.commands.options import Parser
from benchmarks.api_client import ApiClient
from benchmarks.checkpoints import write_checkpoint
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import ServerProcess, serving

CHAT = "/v1/chat/completions"
MIB = 2**20
NUM_TOKENS = 1900
NUM_UNREAD = 4000  # tokens: more than may wait for a reader
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}
LOGPROBS = {"logprobs": True, "top_logprobs": 20}
LARGEST = {**HELLO, **LOGPROBS, "n": 16, "max_tokens": NUM_TOKENS, "temperature": 1}
NUM_AT_ONCE, POLL_S = 50, 0.05
NUM_FILLING = 5  # answers of 16 choices: more tokens than the KV cache has
POLICIES = ("pause", "coalesce", "drop")
UNREAD_OPTIONS = (
    *("--stall-timeout", "0", "--max-queue", "4096", "--max-paused-per-account", "4096"),
    *("--max-model-len", "8192", "--kv-cache-memory", "128MiB"),
)


@contextmanager
def serving_long(*options: str) -> Iterator[ServerProcess]:
    """Serve `long` for the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint("long", Path(folder) / "long")
        with serving(str(model), "--load-format", "dummy", *options) as server:
            yield server


async def largest(server: ServerProcess, *, is_streamed: bool) -> Verdict:
    """Request the largest response and read all of it; `/livez` is requested beside it."""
    client, reader = server.client(), PieceReader()
    await client.post(CHAT, {**HELLO, "max_tokens": 8, "logprobs": True})  # a server that has answered before
    fields = {**LARGEST, "stream": True, "stream_options": {"include_usage": True}} if is_streamed else LARGEST
    server.reset_peak()
    before, slowest = server.resident(), _Slowest(client)
    async with slowest.measured():
        await client.exchange(server.target.post(CHAT, orjson.dumps(fields)), reader)
    assert reader.num_tokens() == 16 * NUM_TOKENS
    print(f"{reader.num_bytes / MIB:.0f} MiB of JSON, /livez at most {slowest.seconds * 1000:.0f} ms", flush=True)
    name = f"largest answer, {'streamed' if is_streamed else 'not streamed'}"
    return judge("answer_memory", name, (server.peak() - before) / MIB)


async def unread(server: ServerProcess, policy: str, num_readers: int) -> Verdict:
    """Open streams of which nothing is read, wait until no more is made for them, and hang up."""
    client = server.client()
    fields = {**HELLO, **LOGPROBS, "max_tokens": NUM_UNREAD, "stream": True, "stream_options": {"slow_reader": policy}}
    await _fill_pool(client)
    server.reset_peak()
    before = server.resident()
    readers: list[socket.socket] = []
    while len(readers) < num_readers:
        readers += [await _ask(server, fields) for _ in range(min(NUM_AT_ONCE, num_readers - len(readers)))]
        await _until_begun(readers[-NUM_AT_ONCE:])
    await _until_still(client)
    rejected = [head for head in map(_head, readers) if b" 200 " not in head]
    assert not rejected, f"{len(rejected)} of {num_readers} readers were rejected, the first with {rejected[0]!r}"
    each = (server.peak() - before) / num_readers / 1024
    for reader in readers:
        reader.close()
    return judge("answer_memory", "unread", each, f"{policy}, {num_readers} readers")


class _Slowest:
    """The longest that `/livez` took."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.seconds = 0.0

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            task.cancel()

    async def _ask(self) -> None:
        while True:
            began = time.monotonic()
            await self._client.get("/livez")
            self.seconds = max(self.seconds, time.monotonic() - began)
            await asyncio.sleep(0.02)


async def _ask(server: ServerProcess, fields: dict[str, Any]) -> socket.socket:
    reader, loop = socket.socket(), asyncio.get_running_loop()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    await loop.sock_connect(reader, ("127.0.0.1", server.port))
    await loop.sock_sendall(reader, server.target.post(CHAT, orjson.dumps(fields)))
    return reader


async def _fill_pool(client: ApiClient) -> None:
    """Touch all KV cache memory, so that it does not count as growth."""
    fields = {**HELLO, "max_tokens": NUM_UNREAD, "n": 16}
    answers = await asyncio.gather(*(client.post(CHAT, fields) for _ in range(NUM_FILLING)))
    assert {answer.status for answer in answers} == {200}


async def _until_begun(readers: list[socket.socket]) -> None:
    """Wait until all have an answer: no more at once than a server prepares."""
    while not all(map(_head, readers)):  # noqa: ASYNC110 - peeked sockets wake no task
        await asyncio.sleep(POLL_S)


def _head(reader: socket.socket) -> bytes:
    """Return how its answer begins; nothing is taken from the socket."""
    with suppress(BlockingIOError):
        return reader.recv(1000, socket.MSG_PEEK)
    return b""


async def _until_still(client: ApiClient) -> None:
    """Wait until nothing is computed any more."""
    count, num_same = -1.0, 0
    while num_same < 3:
        page = (await client.get("/metrics")).content
        now = sum(map(float, re.findall(rb"^vllm:generation_tokens_total\S* (\S+)$", page, re.MULTILINE)))
        num_same = num_same + 1 if now == count else 0
        count = now
        await asyncio.sleep(1)


def measure(num_readers: int) -> Iterator[Verdict]:
    """Measure everything, each on a server of its own."""
    for is_streamed in (True, False):
        with serving_long() as server:
            yield asyncio.run(largest(server, is_streamed=is_streamed))
    for policy in POLICIES:
        with serving_long(*UNREAD_OPTIONS) as server:
            yield asyncio.run(unread(server, policy, num_readers))


def add_options(parser: Parser) -> None:
    """Add how many read nothing."""
    parser.add_argument("--readers", type=int, default=1000, help="clients that read nothing, default 1000")


def run(args: argparse.Namespace) -> int:
    """Measure and judge."""
    verdicts = []
    for verdict in measure(args.readers):
        verdicts.append(verdict)
        print(verdict, flush=True)
    return conclude(verdicts)
