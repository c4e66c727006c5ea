"""Records an engine whose KV cache is full, for the tour of the live view: `python -m tools.live_recording [MODEL]`.

A server with few blocks answers questions that need more of them, and what `/live` sends meanwhile becomes
app/static/engine/full_pool.bin: each message behind its length. Nothing is written unless a block is copied, one
request loses its blocks, and one is swapped.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from websockets.asyncio.client import connect as connect_socket

from app.client.client import ChatClient, connect
from app.client.live_picture import LivePicture
from app.contract.engine_picture import GroupState
from app.contract.live_state import LIVE_PROTOCOL, LiveChange, LiveCopy, LiveState
from benchmarks.server_process import serving

FILE = Path(__file__).parents[1] / "app/static/engine/full_pool.bin"
MAX_BYTES = 200_000
OPTIONS = ("--num-kv-blocks", "32", "--max-model-len", "512", "--swap-space", "3MiB")
"""The host has room for one request only: the next one loses its blocks."""
INSTRUCTION = "You explain how a server of language models works. Use plain words, and give one example with numbers."
QUESTIONS = (
    "How does paged attention work?",
    "What is continuous batching?",
    "What is a block?",
    "What is a token?",
    "Why are keys and values kept?",
)
NUM_TOKENS = 160
GAP_S = 0.3
"""From one question to the next."""
HANG_S = 600.0
NEEDED = frozenset({"copied", GroupState.PREEMPTED, GroupState.SWAPPED})
_LENGTH = struct.Struct("<I")


class CannotRecord(Exception):
    """There is nothing to write."""


def pack(messages: Sequence[bytes]) -> bytes:
    """Return the content of the file."""
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def unpack(content: bytes) -> list[bytes]:
    """Return the messages of the file's content."""
    messages, place = [], 0
    while place < len(content):
        begin = place + _LENGTH.size
        place = begin + _LENGTH.unpack_from(content, place)[0]
        messages.append(content[begin:place])
    return messages


def events_of(state: LiveState) -> list[str]:
    """Return what happened before a message: `copied` for a block, and the new states of requests."""
    events = ["copied" for record in state.records if isinstance(record, LiveCopy)]
    return [*events, *(str(record.state) for record in state.records if isinstance(record, LiveChange))]


async def record(port: int) -> list[bytes]:
    """Return what a server sends, from before the first question to after the last answer.

    Raises:
        CannotRecord: not all that is to be shown has happened.
    """
    messages: list[bytes] = []
    events: list[str] = []
    picture = LivePicture()
    async with (
        asyncio.timeout(HANG_S),
        connect_socket(f"ws://127.0.0.1:{port}/live", subprotocols=[LIVE_PROTOCOL], max_size=None) as watcher,
        connect(f"http://127.0.0.1:{port}") as client,
        asyncio.TaskGroup() as group,
    ):
        async for message in watcher:
            assert isinstance(message, bytes)
            picture.receive(message)
            assert picture.state is not None
            if not messages:  # the engine at rest
                group.create_task(ask_all(client))
            messages.append(message)
            events += events_of(picture.state)
            if events.count(GroupState.ENDED) == len(QUESTIONS):
                break
    if missing := NEEDED.difference(events):
        raise CannotRecord(f"Nothing was {' or '.join(sorted(missing))}.")
    return messages


async def ask_all(client: ChatClient) -> None:
    """Ask one question after the other, the first for two answers, and read what is answered."""
    params = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    async with asyncio.TaskGroup() as group:
        for question in QUESTIONS:
            messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
            answer = await client.chat(messages, n=2 if question == QUESTIONS[0] else 1, **params)
            group.create_task(answer.texts())
            await asyncio.sleep(GAP_S)


def main() -> int:
    """Record, and write the file."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    with serving(model, *OPTIONS) as server:
        messages = asyncio.run(record(server.port))
    content = pack(messages)
    if len(content) > MAX_BYTES:
        raise CannotRecord(f"The recording has {len(content):,} bytes; at most {MAX_BYTES:,} are sent to browsers.")
    FILE.write_bytes(content)
    print(f"{FILE.name}: {len(messages)} messages, {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotRecord as error:
        sys.exit(str(error))
