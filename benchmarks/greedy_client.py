"""A client that sends as many requests as it can: `python -m benchmarks.greedy_client PORT ATTACK ADDRESS KEY`.

`fairness.py` runs it. `starts` sends 1,000 streamed completions at once, and reads the responses. `sleeping` starts 300
streams of quire.v1, waits until all are paused or rejected, and never reads a token. It prints a line when all requests
have been sent, or are paused, and ends only by a signal. It runs at the lowest CPU priority, so that its cost to others
is the server's.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from app.loadgen.load_client import Client
from app.streaming.chat_table import PROTOCOL
from benchmarks.fairness import READY
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import local_target

NUM_STARTS = 1000
NUM_SOCKETS, NUM_STREAMS = 10, 30
NUM_PROMPT, NUM_NEW = 200, 1500
LOWEST_PRIORITY = 19


class Greedy:
    """One client of the server on `port`, with an address and a key of its own."""

    def __init__(self, port: int, address: str, key: str) -> None:
        self._sockets: list[ClientConnection] = []  # so that they stay open
        self._target, self._address = local_target(port, key or None, address), address
        self._num_sent = 0
        self._has_sent_all = asyncio.Event()

    async def attack(self, name: str) -> None:
        """Attack without an end; say so when everything has been sent."""
        async with asyncio.TaskGroup() as group:
            if name == "starts":
                for number in range(NUM_STARTS):
                    group.create_task(self._complete(number))
                await self._has_sent_all.wait()
            else:
                await asyncio.gather(*(self._fall_asleep() for _ in range(NUM_SOCKETS)))
            print(READY, flush=True)
            await asyncio.Event().wait()

    async def _complete(self, number: int) -> None:
        prompt = [10 + (number * 31 + place * 7) % 2900 for place in range(NUM_PROMPT)]
        fields = {"prompt": prompt, "max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True, "stream": True}
        message = self._target.post("/v1/completions", orjson.dumps(fields))
        with contextlib.suppress(OSError):
            await Client(self._target, 0.0).exchange(message, _Counted(self._note_sent))

    def _note_sent(self) -> None:
        self._num_sent += 1
        if self._num_sent == NUM_STARTS:
            self._has_sent_all.set()

    async def _fall_asleep(self) -> None:
        """Start streams on one socket, and read until all are paused or rejected."""
        url = self._target.url.replace("http", "ws") + "/ws"
        protocols = [Subprotocol(PROTOCOL)]
        socket = await connect(url, subprotocols=protocols, local_addr=(self._address, 0), ping_interval=None)
        self._sockets.append(socket)
        await socket.send(json.dumps({"t": "hello", "protocol": PROTOCOL, "key": self._target.key}))
        text = " ".join(["why"] * NUM_PROMPT)
        request = {"messages": [{"role": "user", "content": text}], "max_tokens": NUM_NEW, "ignore_eos": True}
        for number in range(NUM_STREAMS):
            await socket.send(json.dumps({"t": "start", "id": f"s{number}", "request": request, "credit": 0}))
        num_awake = NUM_STREAMS
        while num_awake:
            num_awake -= json.loads(await socket.recv())["t"] in ("paused", "error")


class _Counted(PieceReader):
    """Calls `on_connected` when it is connected; the request is sent at once then."""

    def __init__(self, on_connected: Callable[[], None]) -> None:
        super().__init__()
        self._on_connected = on_connected

    def connected(self, now: float) -> None:
        self._on_connected()


if __name__ == "__main__":
    os.nice(LOWEST_PRIORITY)
    port, attack, address, key = sys.argv[1:]
    asyncio.run(Greedy(int(port), address, key).attack(attack))
