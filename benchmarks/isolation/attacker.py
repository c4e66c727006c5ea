"""The attacking client of one row, as a process of its own at the lowest priority.

`python -m benchmarks.isolation.attacker NAME URL CONTEXT SOURCE [KEY]`. Prints `ready`, and attacks from the first line
of its input to the input's end, at most MAX_S seconds and MAX_RUNS times. It prints `answered` when the server has
answered something, and in the end what it answered altogether (JSON). To a server without keys it is another client
than one from 127.0.0.1, because it comes from the address SOURCE.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from websockets.exceptions import WebSocketException

from app.runtime.process_limits import raise_file_limit
from benchmarks.isolation.attack_client import Client
from benchmarks.isolation.attack_table import ATTACKS

RETRY_S = 0.05
MAX_S, MAX_RUNS = 120.0, 200_000


async def repeat(client: Client, run: Callable[[Client], Awaitable[object]], count: int) -> None:
    """Attack `count` times, whatever the server makes of it."""
    for _ in range(count):
        try:
            await run(client)
        except (OSError, EOFError, WebSocketException, asyncio.LimitOverrunError) as error:
            client.note(type(error).__name__)
            await asyncio.sleep(RETRY_S)


async def tell_answered(client: Client) -> None:
    """Say when the server has answered something."""
    await client.is_answered.wait()
    print("answered", flush=True)


async def main(name: str, client: Client) -> None:
    """Attack from the first line of the input to its end, and print what came back."""
    attack, commands = ATTACKS[name], asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("ready", flush=True)
    tasks: list[asyncio.Task[None]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_S):
            if not await commands.readline():
                return
            count = MAX_RUNS // attack.num_workers
            tasks = [asyncio.create_task(repeat(client, attack.run, count)) for _ in range(attack.num_workers)]
            tasks.append(asyncio.create_task(tell_answered(client)))
            await commands.read()
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):  # a mistake in the attack: without it the row would prove nothing
            raise end
    print(json.dumps(client.answers), flush=True)


if __name__ == "__main__":
    os.nice(19)
    raise_file_limit()
    _, name, url, context, source, *key = sys.argv
    asyncio.run(main(name, Client(url, int(context), source, *key)))
