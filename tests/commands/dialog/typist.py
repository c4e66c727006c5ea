"""Somebody at a terminal: a process on a pseudo terminal, keys that are typed, and what is seen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.processes import HANG_S

# The process opens its terminal to make it the controlling one, and takes Ctrl-C also where the caller ignores it.
_START = """
import os, signal, sys
os.open(os.ttyname(0), os.O_RDWR)
signal.signal(signal.SIGINT, signal.default_int_handler)
from app.__main__ import run
sys.exit(run())
"""
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


class Typist:
    """Types into a process, and waits for what it shows. `seen` is all output so far."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.seen = ""
        self._process = process
        self._terminal = terminal
        self._read_to = 0

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> None:
        """Return once a text is shown behind the last one that was waited for."""
        deadline = time.monotonic() + HANG_S
        while (at := self.seen.find(text, self._read_to)) < 0:
            assert time.monotonic() < deadline and self._read(), f"{text!r} is not shown: {self.seen!r}"
        self._read_to = at + len(text)

    def interrupt_prompt(self) -> None:
        """Press Ctrl-C at the next prompt, once it waits for keys.

        Python's `input` shows the prompt a moment before, and misses a signal in between until the next key comes.
        """
        self.wait_for("> ")
        while not self._is_asleep():
            time.sleep(0.005)
        self.type(CTRL_C)

    def leave(self) -> int:
        """Press Ctrl-D at the next prompt, and return the exit code: before it, the key would be lost."""
        self.wait_for("> ")
        self.type(CTRL_D)
        return self.end()

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        while self._read():
            pass
        return self._process.wait(HANG_S)

    def _read(self) -> bool:
        """Read more; False once the process has closed the terminal."""
        if select.select([self._terminal], [], [], HANG_S)[0]:
            try:
                self.seen += os.read(self._terminal, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def _is_asleep(self) -> bool:
        """Return whether the main thread waits, or has ended. At a prompt it waits for nothing but keys."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "RD"


@contextmanager
def typing(*arguments: str, columns: int = 80, **environment: str) -> Iterator[Typist]:
    """Run a command on a terminal for the time of a block; kill it at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", _START, *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Typist(process, ours)
    finally:
        process.kill()
        process.wait(HANG_S)
        os.close(ours)
