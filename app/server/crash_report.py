"""The crash report of a process that hangs: one JSON line and the stacks of all threads, on stderr. No prompts."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import select
import sys
import tempfile
import time
from collections.abc import Mapping

from app import __version__
from app.observe.log import json_line

STDERR = 2
# Longest wait for space in a full pipe. A reader that no longer reads stderr may be the reason for the hang.
MAX_WAIT_S = 1.0
# A write of up to this many bytes to a pipe with space does not block; POSIX guarantees 512.
PIECE_BYTES = getattr(select, "PIPE_BUF", 512)


def write_crash_report(
    message: str, fields: Mapping[str, object], *, fd: int = STDERR, max_wait_s: float = MAX_WAIT_S
) -> None:
    """Write why the process ends; `fields` go into the JSON line. Any thread; never raises, blocks up to `max_wait_s`.

    Writes to the file descriptor without locks, because hanging threads may hold those of `logging` and `sys.stderr`.
    """
    line = json_line("critical", "quire.watchdog", message, {**fields, "versions": _versions()}, created=time.time())
    report = f"{line}\n".encode() + _stacks()
    with contextlib.suppress(OSError, ValueError):
        while report and select.select([], [fd], [], max_wait_s)[1]:
            report = report[os.write(fd, report[:PIECE_BYTES]) :]


def _versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    versions = {"quire": __version__, "python": platform.python_version()}
    return versions if torch is None else {**versions, "torch": str(torch.__version__)}


def _stacks() -> bytes:
    """Return the stacks of all threads; nothing if no temporary file can be made."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
    return b""
