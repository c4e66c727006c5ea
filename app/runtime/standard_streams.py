"""Standard input, output and errors that the caller has closed, and texts that a terminal cannot show."""

from __future__ import annotations

import io
import os
import sys


def open_standard_streams() -> None:
    """Open those standard streams that are closed as the null device, and let output show `?` for what it cannot.

    Otherwise the first files and sockets that are opened would become the standard streams, and Python has None for
    them. Main thread only, before threads start. Idempotent.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
