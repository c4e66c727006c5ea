"""Starts the command line in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL
from typing import IO, Protocol, TypeVar

import httpx

HANG_S = 240
"""A time limit for waits; a wait that takes this long is a bug, even on a busy machine."""
QUIRE_SERVE = ("app", "serve")
T = TypeVar("T", bound="Process")


def quire(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its result."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, **environment},
    )


class Process(Protocol):
    """What the tests use of `subprocess.Popen`."""

    pid: int
    stdout: IO[str] | None
    stderr: IO[str] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class RunningServer:
    """`quire serve` on a free port; `url` is read from its first line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        assert process.stdout is not None
        first_line = process.stdout.readline()
        self.url = next(word for word in first_line.split() if word.startswith("http://"))

    def wait_until_ready(self) -> None:
        """Return when /readyz responds with 200."""
        deadline = time.monotonic() + HANG_S
        with httpx.Client(base_url=self.url, timeout=HANG_S) as client:  # one: each reads the system's certificates
            while time.monotonic() < deadline:
                assert self.process.poll() is None, "the server has ended"
                if client.get("/readyz").status_code == 200:
                    return
                time.sleep(0.05)
        raise AssertionError("the server was never ready")

    def end(self) -> int:
        """Wait for the process and return its exit code."""
        return self.process.wait(HANG_S)


@contextmanager
def serving(
    *arguments: str, program: Sequence[str] = QUIRE_SERVE, stderr: int | IO[str] = DEVNULL
) -> Iterator[RunningServer]:
    """Run a server for the time of a block; kill it at the end.

    `program` are the arguments of `python -m`; stderr goes to the file or pipe `stderr`.
    """
    command = [sys.executable, "-m", *program, "--port", "0", *arguments]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)) as process:
        yield RunningServer(process)


@contextmanager
def ending(process: T) -> Iterator[T]:
    """Kill a process at the end of a block, and close its pipes."""
    try:
        yield process
    finally:
        process.kill()
        process.wait(HANG_S)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()
