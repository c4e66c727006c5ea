"""What the pages of the tests ask of other machines: a proxy for all of them, which connects to none."""

from __future__ import annotations

import atexit
import socket
from contextlib import suppress
from functools import cache

from playwright.async_api import ProxySettings

HERE = "127.0.0.1"
PATIENCE_S = 10  # in which who has connected says what for


class Elsewhere:
    """A proxy that accepts connections only to tell what was asked for; until then they wait."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HERE, 0))
        self._listener.setblocking(False)
        atexit.register(self._listener.close)

    @property
    def proxy(self) -> ProxySettings:
        """What a context is made with."""
        return {"server": f"http://{HERE}:{self._listener.getsockname()[1]}", "bypass": HERE}

    def asked(self) -> list[str]:
        """Return the first lines of the requests since the last call, and refuse them."""
        lines = []
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(PATIENCE_S)
                    lines.append(connection.makefile("rb").readline().decode(errors="replace").strip())
        return lines


elsewhere = cache(Elsewhere)
