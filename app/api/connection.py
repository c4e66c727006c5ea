"""What a handler may know of the connection under its request, and the little that it may do to it."""

from __future__ import annotations

from starlette.types import Scope, Send

from app.streaming.flow.ack_monitor import Connection

EXTENSION = "quire.connection"
"""Where the server leaves the connection, in a scope's `extensions`."""
SEND = "quire.send"
"""Where the server leaves its own `send`, likewise."""


class _NoConnection:
    """Stands in where the server gives none, as in tests without sockets."""

    def unread_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        """Do nothing."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Do nothing."""


def connection_of(scope: Scope) -> Connection:
    """Return the connection of an HTTP or WebSocket scope; one that does nothing where the server gives none."""
    connection: Connection = (scope.get("extensions") or {}).get(EXTENSION) or _NoConnection()
    return connection


def direct_send(scope: Scope, send: Send) -> Send:
    """Return the server's own `send` for what follows an answer's beginning, or `send` where it gives none.

    The wrappers that middleware and router put around `send` have done their part once an answer has begun or a
    WebSocket is accepted; for each token of each stream they cost as much as making its JSON.
    """
    direct: Send = (scope.get("extensions") or {}).get(SEND) or send
    return direct
