"""The connection that handlers see (`app.api.connection`), made of an event loop's transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any

_RESET_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds


def reset_at_close(peer: socket.socket) -> None:
    """Let the close of a connection be a reset: what is still to be sent is dropped, and the peer told so at once."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)


class SocketConnection:
    """See `app.api.connection.Connection`; the protocol that makes it calls `lost` when the connection has gone."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_lost = False
        self._patience_ms: int | None = None

    def unread_bytes(self) -> int:
        """Return what waits in the transport and in the kernel's send buffer."""
        if self._is_lost:
            return 0
        return self._transport.get_write_buffer_size() + _kernel_bytes(self._transport.get_extra_info("socket"))

    def abort(self) -> None:
        """Reset the connection: a peer that reads nothing would leave a polite end waiting for ever."""
        if self._is_lost:
            return
        peer = self._transport.get_extra_info("socket")
        if peer is not None:
            with contextlib.suppress(OSError):
                reset_at_close(peer)
        self._transport.abort()

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Set TCP_USER_TIMEOUT back to what the listening socket gave it, or to none."""
        peer, option = self._transport.get_extra_info("socket"), getattr(socket, "TCP_USER_TIMEOUT", None)
        if self._is_lost or peer is None or option is None:
            return
        with contextlib.suppress(OSError):
            if self._patience_ms is None:
                self._patience_ms = peer.getsockopt(socket.IPPROTO_TCP, option)
            peer.setsockopt(socket.IPPROTO_TCP, option, self._patience_ms if is_on else 0)

    def lost(self) -> None:
        """Forget the socket: its descriptor may soon be another connection's."""
        self._is_lost = True


def _kernel_bytes(peer: Any) -> int:
    """What the kernel holds until the peer's acknowledges it, where the system can say so."""
    if peer is None:
        return 0
    try:
        import fcntl
        import termios

        return int.from_bytes(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (ImportError, AttributeError, OSError):
        return 0
