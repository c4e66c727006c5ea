"""Trials in real processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.contract.grammar import Grammar, GrammarKind
from app.text.grammar.children.fork_client import ForkClient
from app.text.grammar.children.trial import Ended, GrammarLimits, Verdict, encode_grammar, read_trial
from tests.text import toys

HANG_S = 240
PLENTY = GrammarLimits(cpu_s=600, memory_bytes=2**40, wall_s=600)
SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
# Each takes minutes, and more memory each second.
ENDLESS = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer","multipleOf":49999991}')
LARGE = Grammar(GrammarKind.LARK, "start: A\nA: " + " & ".join(f"/(?s:.*)k{part}(?s:.*)/" for part in range(40)))

NO_FORK = """
import os
def fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
from app.text.grammar.children.fork_server import main; main()
"""
"""What the process runs instead, where the system forks nothing."""


@contextmanager
def forking(limits: GrammarLimits | None = None, *, is_started: bool = True) -> Iterator[ForkClient]:
    """A process that forks, with a byte-level vocabulary, for the time of the block."""
    text, _ = toys.toy("byte_level")
    client = ForkClient(text, text.vocab_size, (1,), limits)
    try:
        if is_started:
            client.start()
        yield client
    finally:
        client.close()


def tried(client: ForkClient, grammar: Grammar, *, is_short: bool = False) -> tuple[Verdict | None, Ended]:
    """What a trial of a grammar says, and how it ended."""
    with client.fork_short() if is_short else client.fork() as connection:
        connection.settimeout(HANG_S)
        connection.sendall(encode_grammar(grammar))
        return received(connection)


def received(connection: socket.socket) -> tuple[Verdict | None, Ended]:
    """What comes back from a trial; the socket is reset if it ends before it has read its grammar."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(2**16):
            data += piece
    return read_trial(data)


def forked_by(client: ForkClient) -> list[int]:
    """The processes that were forked and have not ended."""
    pid = client.pid
    return [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def num_threads(pid: int | None) -> int:
    """The threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet waited for by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition: Callable[[], object]) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
