"""A server that may open few files, and more clients than that.

`python -m benchmarks open_files`. 500 clients connect to a server that may open 128 files. It must not end, nor use
the processor while it waits, and when they have gone, it must answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from contextlib import AsyncExitStack, suppress

from app.commands.options import Parser
from app.runtime.process_limits import raise_file_limit
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.server_process import ServerProcess, serving

NUM_FILES, NUM_CLIENTS = 128, 500
WATCH_S, CONNECT_S, ANSWER_S = 5.0, 2.0, 30.0


def add_options(parser: Parser) -> None:
    """Add nothing: there are no options."""


def run(args: argparse.Namespace) -> int:
    """Measure, print and judge."""
    raise_file_limit()
    with serving("guide", "--max-connections-per-ip", str(NUM_CLIENTS)) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))
        verdicts = asyncio.run(measure(server))
    print(*verdicts, sep="\n")
    return conclude(verdicts)


async def measure(server: ServerProcess) -> list[Verdict]:
    """Connect all clients, look what the server does with the processor, and let them go.

    Raises:
        RuntimeError: the server has ended.
    """
    async with AsyncExitStack() as opened:
        for _ in range(NUM_CLIENTS):
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    _, writer = await asyncio.open_connection(**server.target.connecting)
                opened.callback(writer.transport.abort)
        before = server.processor_s()
        await asyncio.sleep(WATCH_S)
        share = (server.processor_s() - before) / WATCH_S
    if (code := server.exit_code()) is not None:
        raise RuntimeError(f"the server ended with exit code {code}")
    answer = await server.client(ANSWER_S).get("/readyz")
    return [
        judge("open_files", "of a core, while clients wait", share),
        judge("open_files", "answers afterwards, of one", float(answer.status == 200)),
    ]
