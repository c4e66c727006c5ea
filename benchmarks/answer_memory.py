"""Memory of a server for what goes out: the largest answer, and answers that nobody reads.

`python -m benchmarks answer_memory` starts a server on `long` (see checkpoints.py), and prints by how much its peak
resident memory grows, beside the limit; it exits 1 when one is missed. Linux only. It counts bytes and takes no times,
but for `/livez`, which is asked all the while, for information.

- The largest answer: n=16, top_logprobs=20, 1,900 tokens each, streamed and whole.
- Unread: clients that ask for long answers with log-probabilities and read nothing, under each policy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.checkpoints import write_checkpoint
from benchmarks.server_process import ServerProcess, serving

MIB = 2**20
NUM_TOKENS = 1900
NUM_UNREAD = 4000  # tokens: more than may wait for a reader
LARGEST = {
    "n": 16,
    "logprobs": True,
    "top_logprobs": 20,
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "temperature": 1,
}
LIMITS_MIB = {"streamed": 64.0, "whole": 128.0}
MAX_KIB_EACH = 256.0
NUM_AT_ONCE, POLL_S = 50, 0.05
NUM_FILLING = 5  # answers of 16 choices: more tokens than the KV cache has
POLICIES = ("pause", "coalesce", "drop")
UNREAD_OPTIONS = ("--stall-timeout", "0", "--max-queue", "4096", "--max-paused-per-account", "4096")
UNREAD_OPTIONS += ("--max-model-len", "8192", "--kv-cache-memory", "128MiB")


class Figure(NamedTuple):
    """By how much memory grew, and by how much it may."""

    name: str
    grown: float
    limit: float
    unit: str
    remark: str = ""

    @property
    def is_met(self) -> bool:
        """Whether it is within its limit."""
        return self.grown <= self.limit


@contextmanager
def serving_long(*options: str) -> Iterator[ServerProcess]:
    """Serve `long` for the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint("long", Path(folder) / "long")
        with serving(str(model), "--load-format", "dummy", *options) as server:
            yield server


async def largest(server: ServerProcess, *, is_streamed: bool) -> Figure:
    """Ask for the largest answer and take all of it; `/livez` is asked beside it."""
    body = {"messages": [{"role": "user", "content": "Hello"}], **LARGEST, "stream": is_streamed}
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    server.reset_peak()
    before, slowest, last = server.resident(), _Slowest(server.url), b""
    async with slowest.asked(), httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        num_bytes = 0
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for piece in answer.aiter_bytes():
                num_bytes += len(piece)
                last = (last + piece)[-2000:]
    found = re.search(rb'"completion_tokens":(\d+)', last)
    assert found is not None and int(found[1]) == LARGEST["n"] * NUM_TOKENS, last
    name = "streamed" if is_streamed else "whole"
    remark = f"{num_bytes / MIB:.0f} MiB of JSON, /livez at most {slowest.seconds * 1000:.0f} ms"
    return Figure(f"largest answer, {name}", (server.peak() - before) / MIB, LIMITS_MIB[name], "MiB", remark)


async def unread(server: ServerProcess, policy: str, num_readers: int) -> Figure:
    """Open streams of which nothing is read, wait until no more is made for them, and hang up."""
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": NUM_UNREAD,
        "ignore_eos": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,
        "stream_options": {"slow_reader": policy},
    }
    await _fill_pool(server)
    server.reset_peak()
    before = server.resident()
    readers: list[socket.socket] = []
    while len(readers) < num_readers:
        readers += [await _ask(server.url, body) for _ in range(min(NUM_AT_ONCE, num_readers - len(readers)))]
        await _until_begun(readers[-NUM_AT_ONCE:])
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        await _until_still(client)
    refused = [head for head in map(_head, readers) if b" 200 " not in head]
    assert not refused, f"{len(refused)} of {num_readers} readers were refused, the first one with {refused[0]!r}"
    each = (server.peak() - before) / num_readers / 1024
    for reader in readers:
        reader.close()
    return Figure(f"unread, {policy}", each, MAX_KIB_EACH, "KiB each", f"{num_readers} readers")


class _Slowest:
    """The longest that `/livez` took."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.seconds = 0.0

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            task.cancel()

    async def _ask(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=None) as client:
            while True:
                began = time.monotonic()
                await client.get("/livez")
                self.seconds = max(self.seconds, time.monotonic() - began)
                await asyncio.sleep(0.02)


async def _ask(url: str, body: dict[str, object]) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    payload = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, (host, int(port)))
    await loop.sock_sendall(reader, f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return reader


async def _fill_pool(server: ServerProcess) -> None:
    """Have the whole KV cache in memory: it is set apart, whoever reads or does not."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": NUM_UNREAD, "ignore_eos": True, "n": 16}
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        answers = [client.post("/v1/chat/completions", json=body) for _ in range(NUM_FILLING)]
        for answer in await asyncio.gather(*answers):
            answer.raise_for_status()


async def _until_begun(readers: list[socket.socket]) -> None:
    """Wait until all have an answer: no more at once than a server prepares."""
    while not all(map(_head, readers)):  # noqa: ASYNC110 - sockets that are only looked at wake nobody
        await asyncio.sleep(POLL_S)


def _head(reader: socket.socket) -> bytes:
    """Return how its answer begins; nothing is taken from the socket."""
    with suppress(BlockingIOError):
        return reader.recv(1000, socket.MSG_PEEK)
    return b""


async def _until_still(client: httpx.AsyncClient) -> None:
    """Wait until nothing is computed any more."""
    count, num_same = -1.0, 0
    while num_same < 3:
        page = (await client.get("/metrics")).text
        now = sum(map(float, re.findall(r"^vllm:generation_tokens_total\S* (\S+)$", page, re.MULTILINE)))
        num_same = num_same + 1 if now == count else 0
        count = now
        await asyncio.sleep(1)


async def measure(num_readers: int) -> list[Figure]:
    """Measure everything, each on a server that has answered before."""
    figures = []
    for is_streamed in (True, False):
        with serving_long() as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "logprobs": True}
                (await client.post("/v1/chat/completions", json=body)).raise_for_status()
            figures.append(await largest(server, is_streamed=is_streamed))
            _print(figures[-1])
    for policy in POLICIES:
        with serving_long(*UNREAD_OPTIONS) as server:
            figures.append(await unread(server, policy, num_readers))
            _print(figures[-1])
    return figures


def _print(figure: Figure) -> None:
    verdict = "" if figure.is_met else "  MISSED"
    print(f"{figure.name:26}{figure.grown:8.1f} {figure.unit}, limit {figure.limit:.0f}; {figure.remark}{verdict}")
    sys.stdout.flush()


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1000, help="clients that read nothing, default 1000")
    return int(not all(figure.is_met for figure in asyncio.run(measure(parser.parse_args().readers))))


if __name__ == "__main__":
    assert os.name == "posix"
    sys.exit(main())
