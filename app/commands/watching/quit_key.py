"""Waits for `q` on a terminal, whose keys come without a return while it waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import tty
from collections.abc import Iterator

_KEYS = b"qQ"


@contextlib.contextmanager
def quit_key(terminal: int) -> Iterator[asyncio.Event]:
    """Yield an event that is set when `q` is typed on the terminal of a file descriptor. Loop only."""
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        typed = os.read(terminal, 64)
        if not typed:  # the terminal is gone
            loop.remove_reader(terminal)
        if not typed or any(key in _KEYS for key in typed):
            pressed.set()

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
