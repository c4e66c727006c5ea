"""The last words of a process that hangs: one JSON line and the stacks of all threads, on stderr. No prompts."""

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
# Nobody may read stderr any more, which may well be why something hangs: so long is waited for room in a full pipe.
MAX_WAIT_S = 1.0
# No write of so few bytes to a pipe that has room blocks; 512 is what POSIX guarantees.
PIECE_BYTES = getattr(select, "PIPE_BUF", 512)


def write_crash_report(
    message: str, fields: Mapping[str, object], *, fd: int = STDERR, max_wait_s: float = MAX_WAIT_S
) -> None:
    """Write why the process ends; `fields` go into the JSON line. Any thread; never raises, blocks for a moment only.

    It takes no lock and writes to the file descriptor itself: threads that hang may hold the locks of `logging` and
    of `sys.stderr`.
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
    """Return the stacks of all threads; nothing where no file can be made for them."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
    return b""
