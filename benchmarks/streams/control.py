"""The child's end of the pipe to the command: one request per line of JSON on standard input, one answer per line out.

A child exits when the pipe closes, so that it does not outlive the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Handler = Callable[..., Awaitable[dict[str, Any]]]

EXIT_ORPHANED = 3
LINE_BYTES = 2**24


class Rejected(Exception):
    """A request failed, or the server rejected a client; the text is for the command's user."""


def take_output() -> int:
    """Return a descriptor of standard output for the answers; other output goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


async def serve_requests(handlers: Mapping[str, Handler], answers: int) -> None:
    """Serve requests one after the other until the pipe ends, and with it the process; never returns.

    The answer of a handler that raises is an error, and the next request is served.
    """
    reader = asyncio.StreamReader(LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        request = json.loads(line)
        try:
            answer = await handlers[request.pop("do")](**request)
        except Exception as error:  # the parent waits for an answer in any case
            says = str(error) if isinstance(error, Rejected) else f"{type(error).__name__}: {error}"
            answer = {"error": " ".join(says.split())[:500]}
        _write_all(answers, json.dumps(answer).encode() + b"\n")
    os._exit(EXIT_ORPHANED)


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
