"""A client that takes all it can get, for `fairness.py`: `python -m benchmarks.greedy_client PORT ATTACK ADDRESS KEY`.

`starts` sends 1,000 streamed completions at once, and reads what comes. `sleeping` starts 300 streams of quire.v1,
waits until all are paused or refused, and never takes a token. It prints a line when all has been sent, or sleeps, and
ends only by a signal. It runs at the lowest CPU priority: what it costs others is then the server's doing.
"""

import asyncio
import contextlib
import json
import os
import sys

from websockets.asyncio.client import ClientConnection, connect

from app.streaming.chat_table import PROTOCOL
from benchmarks.fairness import READY

NUM_STARTS = 1000
NUM_SOCKETS, NUM_STREAMS = 10, 30
NUM_PROMPT, NUM_NEW = 200, 1500
READ_BYTES = 65536
LOWEST_PRIORITY = 19


class Greedy:
    """One client of the server on `port`, with an address and a key of its own."""

    def __init__(self, port: int, address: str, key: str) -> None:
        self._sockets: list[ClientConnection] = []  # so that they stay open
        self._port = port
        self._address = address
        self._key = key
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
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))
        body = {"prompt": prompt, "max_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True, "stream": True}
        payload = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\nx-api-key: {self._key}\r\n"
        head += f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        try:
            writer.write(head.encode() + payload)
            await writer.drain()
            self._num_sent += 1
            if self._num_sent == NUM_STARTS:
                self._has_sent_all.set()
            with contextlib.suppress(OSError):
                while await reader.read(READ_BYTES):
                    pass
        finally:
            writer.close()

    async def _fall_asleep(self) -> None:
        """Start streams on one socket, and read until all are paused or refused."""
        url = f"ws://127.0.0.1:{self._port}/ws"
        socket = await connect(url, subprotocols=[PROTOCOL], local_addr=(self._address, 0), ping_interval=None)
        self._sockets.append(socket)
        await socket.send(json.dumps({"t": "hello", "protocol": PROTOCOL, "key": self._key or None}))
        text = " ".join(["why"] * NUM_PROMPT)
        request = {"messages": [{"role": "user", "content": text}], "max_tokens": NUM_NEW, "ignore_eos": True}
        for number in range(NUM_STREAMS):
            await socket.send(json.dumps({"t": "start", "id": f"s{number}", "request": request, "credit": 0}))
        num_awake = NUM_STREAMS
        while num_awake:
            num_awake -= json.loads(await socket.recv())["t"] in ("paused", "error")


if __name__ == "__main__":
    os.nice(LOWEST_PRIORITY)
    port, attack, address, key = sys.argv[1:]
    asyncio.run(Greedy(int(port), address, key).attack(attack))
