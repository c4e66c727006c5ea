"""The bar of a loading model on a terminal, and what the log says meanwhile."""

import fcntl
import logging
import os
import pty
import struct
import termios

import pytest

from app.commands.answers.loading_bar import loading_bar
from tests.commands.dialog.emulator import Emulator

MESSAGE = "Compiling the CPU kernels for avx2, once; they are kept in /cache."


@pytest.mark.parametrize("columns", [40, 80])
def test_a_message_of_the_log_has_a_line_of_its_own_above_the_bar(columns, monkeypatch):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with loading_bar(delay_s=0) as show:
            show(0.0)
            logging.getLogger("app.test").warning(MESSAGE)
            show(0.01)
            stream.flush()
            sent = b""  # a terminal gives what was written in pieces
            while b"Loading   0%" not in sent.partition(MESSAGE.encode())[2]:
                sent += os.read(ours, 65536)
    os.close(ours)
    emulator = Emulator(columns)
    emulator.feed(sent.decode(errors="ignore").replace("\r\n", "\n"))
    first, second = [line.rstrip() for line in emulator.copied.splitlines() if line.strip()]
    assert first == MESSAGE and second.startswith("Loading   0%")
