"""A body is put together from its pieces; a large one that is dropped leaves no memory with the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.api.http.body_buffer import SMALL_BYTES, BodyBuffer

DROPPED = """
import asyncio, re
from pathlib import Path
from starlette.requests import ClientDisconnect, Request
from app.api.body.json_body import read_body
from app.api.http.byte_shares import ByteShares, Receiving

NUM_BODIES, NUM_PIECES, PIECE_BYTES = 32, 20, 100_000
shares = ByteShares(4 * 2**20)
small_objects = []

def resident():
    return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

async def read(turn):
    num_received = 0
    async def receive():
        nonlocal num_received
        num_received += 1
        if num_received > NUM_PIECES:
            await turn.wait()
            return {"type": "http.disconnect"}
        await asyncio.sleep(0)  # so that the pieces of all bodies lie side by side, and other objects between them
        small_objects.append(bytes(1000))
        return {"type": "http.request", "body": bytes(PIECE_BYTES), "more_body": True}
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    try:
        await read_body(Request(scope, receive), 4 * 2**20, Receiving(shares, "client"))
    except ClientDisconnect:
        pass

async def main():
    turn = asyncio.Event()
    before = resident()
    bodies = [asyncio.create_task(read(turn)) for _ in range(NUM_BODIES)]
    while len(small_objects) < NUM_BODIES * NUM_PIECES:
        await asyncio.sleep(0)
    held = resident() - before
    turn.set()
    await asyncio.gather(*bodies)
    print(held, resident() - before)

asyncio.run(main())
"""


@pytest.mark.parametrize("num_bytes", [0, 1, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 1_000_000])
@pytest.mark.parametrize("piece_bytes", [1000, 65_537])
def test_a_body_is_its_pieces(num_bytes, piece_bytes):
    body = (b"0123456789abc" * (num_bytes // 13 + 1))[:num_bytes]
    buffer = BodyBuffer(1_000_000)
    for begin in range(0, num_bytes, piece_bytes):
        buffer.add(body[begin : begin + piece_bytes])
    assert buffer.num_bytes == num_bytes
    assert buffer.take() == body


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the memory of a process")
def test_large_bodies_that_are_dropped_leave_no_memory_with_the_process():
    result = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    held, kept = map(int, result.stdout.split())
    assert held > 60_000_000  # 64 MB of pieces
    assert kept < 8_000_000
