"""The child's end of the pipe to the command: one request per line of JSON on standard input, one answer per line out.

A child ends at once when the pipe does, so that none outlives the command, however that has ended.
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


class Refused(Exception):
    """A request cannot be carried out; the text is for the command's user."""


def take_output() -> int:
    """Return a descriptor of standard output for the answers alone; what else is printed goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


async def obey(handlers: Mapping[str, Handler], answers: int) -> None:
    """Carry out requests one after the other until the pipe ends, and with it the process; never returns.

    A handler that raises answers with an error, and the next request may come.
    """
    reader = asyncio.StreamReader(LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        request = json.loads(line)
        try:
            answer = await handlers[request.pop("do")](**request)
        except Exception as error:  # whatever it is, the parent must not wait for an answer in vain
            says = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            answer = {"error": " ".join(says.split())[:500]}
        _write_all(answers, json.dumps(answer).encode() + b"\n")
    os._exit(EXIT_ORPHANED)


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
