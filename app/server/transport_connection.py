"""The implementation of `app.api.connection.Connection` for a transport of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

_RESET_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds


def reset_at_close(peer: socket.socket) -> None:
    """Make the close of a connection a reset: unsent bytes are dropped, and the peer is informed at once."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)


class SocketConnection:
    """See `app.api.connection.Connection`; the protocol that makes it calls `lost` when the connection is lost."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_lost = False
        self._timeout_ms: int | None = None

    def unread_bytes(self) -> int:
        """Return the bytes in the transport's buffer and in the kernel's send buffer."""
        if self._is_lost:
            return 0
        return self._transport.get_write_buffer_size() + _kernel_bytes(self._transport.get_extra_info("socket"))

    def abort(self) -> None:
        """Reset the connection: with a peer that reads nothing, a graceful close would never complete."""
        if self._is_lost:
            return
        peer = self._transport.get_extra_info("socket")
        if peer is not None:
            with contextlib.suppress(OSError):
                reset_at_close(peer)
        self._transport.abort()

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Set TCP_USER_TIMEOUT to the value inherited from the listening socket, or to none."""
        peer, option = self._transport.get_extra_info("socket"), getattr(socket, "TCP_USER_TIMEOUT", None)
        if self._is_lost or peer is None or option is None:
            return
        with contextlib.suppress(OSError):
            if self._timeout_ms is None:
                self._timeout_ms = peer.getsockopt(socket.IPPROTO_TCP, option)
            peer.setsockopt(socket.IPPROTO_TCP, option, self._timeout_ms if is_on else 0)

    def lost(self) -> None:
        """Stop using the socket, because its descriptor may be reused by another connection."""
        self._is_lost = True


def _kernel_bytes(peer: Any) -> int:
    """Return the unacknowledged bytes in the kernel's send buffer; 0 if the system cannot report them."""
    if peer is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError):
        return 0
