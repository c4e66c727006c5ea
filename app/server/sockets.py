"""The listening socket, and the sockets of accepted connections, which inherit its options (on Linux).

The options, which uvicorn cannot set, limit the bytes that the kernel buffers for a client that reads slowly, and
detect dead peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

from app.config.checks import is_loopback
from app.config.settings import ServerConfig
from app.contract.errors import CannotStart, ConfigurationError

BACKLOG = 512
# Time after which a peer that vanished without a FIN (a closed laptop, a dropped link) is detected: by unanswered
# keep-alive probes on an idle connection, by unacknowledged bytes otherwise.
DEAD_PEER_S = 30
PROBE_INTERVAL_S = 10
# The kernel counts the time of a zero window as time without acknowledgement, even if the peer answers every probe
# (measured). Slow readers are only subject to the stall timeout, so the kernel's timeout is longer.
STALL_MARGIN_S = 10
# The kernel accepts no more bytes while this many are unsent: pending deltas should stay here, where they are merged.
UNSENT_BYTES = 16 * 1024
_MAX_INT = 2**31 - 1
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}  # addresses for documentation: nobody's
_RESET_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds


class SocketConnection:
    """Implements `Connection` for a transport; its protocol calls `lost` when the connection is lost."""

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


def listen(host: str, port: int, server: ServerConfig | None = None) -> socket.socket:
    """Return a socket that listens on `host` and `port`; port 0 picks a free one.

    Of `server`, the send buffer (bytes) and the stall timeout (seconds) are used.

    Raises:
        ConfigurationError: `host` cannot be resolved.
        CannotStart: the port is in use or not allowed, or `host` is not an address of this machine.
    """
    server = server or ServerConfig()
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(
            f"host {host} cannot be resolved: {error.strerror}; give an address of this machine.", param="host"
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_options(listener, server)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host and --port, "
            "or stop the program that uses it.",
            param="port",
        ) from None
    listener.setblocking(False)
    return listener


def urls_of(listener: socket.socket) -> list[str]:
    """Return the URLs of the server: for a browser on this machine, then for those on others, if they can reach it."""
    host, port = listener.getsockname()[:2]
    if host not in (_ANY_IPV4, _ANY_IPV6):
        return [_url(host, port)]
    hosts = ["127.0.0.1", *own_addresses(socket.AF_INET)]
    if host == _ANY_IPV6:
        if listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            hosts = ["::1"]
        hosts += own_addresses(socket.AF_INET6)
    return [_url(host, port) for host in hosts]


def own_addresses(family: socket.AddressFamily) -> list[str]:
    """Return this machine's address in its network: the one that packets to others are sent from. Sends none."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE[family], 9))  # of a datagram's socket: only chooses the route
        if not is_loopback(address := probe.getsockname()[0]):
            return [address]
    return []  # no network of this family


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def unacknowledged_timeout_s(stall_timeout_s: float) -> float:
    """Return how long bytes may stay unacknowledged before the kernel drops a connection; 0 is the kernel's default.

    A stall timeout of 0 allows clients to stall for ever.
    """
    return max(DEAD_PEER_S, stall_timeout_s + STALL_MARGIN_S) if stall_timeout_s else 0


def reset_at_close(peer: socket.socket) -> None:
    """Make the close of a connection a reset: unsent bytes are dropped, and the peer is informed at once."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)


def _set_options(listener: socket.socket, server: ServerConfig) -> None:
    """Limit the bytes that the kernel buffers for a client, and enable keep-alive."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, server.send_buffer)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    timeout_ms = round(unacknowledged_timeout_s(server.stall_timeout) * 1000)
    options = {
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
        "TCP_KEEPIDLE": DEAD_PEER_S - 2 * PROBE_INTERVAL_S,
        "TCP_KEEPINTVL": PROBE_INTERVAL_S,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": min(timeout_ms, _MAX_INT),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Linux has them all
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _kernel_bytes(peer: Any) -> int:
    """Return the unacknowledged bytes in the kernel's send buffer; 0 if the system cannot report them."""
    if peer is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError):
        return 0
