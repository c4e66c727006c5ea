"""Starts the command line in a process that is forked where torch is imported: in a twelfth of the processor time.

For tests of what a server does once it runs, and of how it ends. Tests of how it starts, and of what it imports, have
`tests.server.processes`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO

from tests.house.source import ROOT
from tests.server.processes import HANG_S, QUIRE_SERVE, RunningServer, ending


class Forker:
    """The process that forks the others; it ends with the one that started it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.server.forker"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs, stdout=DEVNULL, cwd=ROOT)
        atexit.register(self.end)

    def fork(self, arguments: Sequence[str], environment: dict[str, str], streams: Sequence[int]) -> IO[bytes]:
        """Start a program; return the lines of its number and, once it has ended, its exit code."""
        lines, report = os.pipe()
        program = {"arguments": arguments, "environment": environment, "folder": os.getcwd()}
        try:
            socket.send_fds(self._requests, [json.dumps(program).encode()], [*streams, report])
        finally:
            os.close(report)
        return os.fdopen(lines, "rb", buffering=0)  # what is read ahead, `select` would not see

    def end(self) -> None:
        """End the process; programs that it has forked stay."""
        self._requests.close()
        self._process.wait(HANG_S)


forker = cache(Forker)


class ForkedProcess:
    """A program, with what the tests use of `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], *, stdout: int | IO[str], stderr: int | IO[str], **environment: str
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        with open(os.devnull) as stdin:
            out, self.stdout = opened(stdout)
            err, self.stderr = (os.dup(out), None) if stderr == STDOUT else opened(stderr)
            streams = (stdin.fileno(), out, err)
            self._lines = forker().fork(arguments, {**os.environ, **environment}, streams)
        os.close(out)
        os.close(err)
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Return the exit code, None while the program runs."""
        if self.returncode is None and select.select([self._lines], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program, and return its exit code.

        Raises:
            TimeoutExpired: it goes on for so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._lines], [], [], timeout)[0]:
                raise TimeoutExpired(list(self.args), timeout or 0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def opened(stream: int | IO[str]) -> tuple[int, IO[str] | None]:
    """Return a new descriptor for a program's output, and the end that reads it if it is a pipe."""
    if stream == PIPE:
        reading, writing = os.pipe()
        return writing, os.fdopen(reading)
    if stream == DEVNULL:
        return os.open(os.devnull, os.O_WRONLY), None
    return os.dup(stream if isinstance(stream, int) else stream.fileno()), None


@contextmanager
def serving(
    *arguments: str, program: Sequence[str] = QUIRE_SERVE, stderr: int | IO[str] = DEVNULL
) -> Iterator[RunningServer]:
    """Run a server for the time of a block, as `tests.server.processes.serving`; kill it at the end."""
    with ending(ForkedProcess([*program, "--port", "0", *arguments], stdout=PIPE, stderr=stderr)) as process:
        yield RunningServer(process)


def quire(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its result, as `tests.server.processes.quire`."""
    command = ["app", *arguments]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        code = ForkedProcess(command, stdout=out, stderr=err, **environment).wait(HANG_S)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())
