"""A process between a client and its server, to be stopped: `python -m benchmarks.soak.relay PORT`.

It prints its own port, and passes on what both say. Stopped with SIGSTOP, it is for the server what a client is whose
machine sleeps: the connection is open, and nobody reads.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from benchmarks.side import ROOT

if TYPE_CHECKING:  # the process is to start quickly
    from app.loadgen.target import Target

PIECE_BYTES = 4096


class Relay:
    """The process, and the server as a client sees it through it.

    Attributes:
        target: see above.
    """

    def __init__(self, process: Process, target: Target) -> None:
        self.target = target
        self._process = process

    async def stop_for(self, seconds: float) -> None:
        """Stop the process, and let it go on. Cancel-safe: it is ended anyway."""
        self._process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def relaying(target: Target) -> AsyncIterator[Relay]:
    """Run a relay to a server until the end of the block."""
    command = [sys.executable, "-m", __name__, str(target.port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield Relay(process, target._replace(port=port))
    finally:
        process.kill()
        await process.wait()


async def main(port: int) -> None:
    """Pass on what comes, for ever."""

    async def connect(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            to_client.transport.abort()
            return
        await asyncio.gather(_pass_on(client, to_server), _pass_on(server, to_client))

    listening = await asyncio.start_server(connect, "127.0.0.1")
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
