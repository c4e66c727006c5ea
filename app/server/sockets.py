"""The listening socket: ours, so that its options reach every accepted connection.

On Linux accepted sockets inherit the options below from the listening one, which uvicorn offers no way to set. They
bound what the kernel holds for a client that reads slowly, and notice a peer that is gone.
"""

from __future__ import annotations

import socket

from app.config.settings import ServerConfig
from app.contract.errors import CannotStart, ConfigurationError

BACKLOG = 512
# A peer that vanished without a FIN (a closed laptop, a dropped link) is noticed after this long: by unanswered
# keep-alive probes while nothing is sent, by unacknowledged bytes while something is.
DEAD_PEER_S = 30
PROBE_INTERVAL_S = 10
# The kernel counts a window that a slow reader keeps shut as time without acknowledgement, even where it answers every
# probe (measured). Only the stall timeout may judge slow readers, so the kernel's patience ends later.
STALL_MARGIN_S = 10
# The kernel takes no more to send while this much is unsent: what waits should wait here, where it can be merged.
UNSENT_BYTES = 16 * 1024
_MAX_INT = 2**31 - 1


def listen(host: str, port: int, server: ServerConfig | None = None) -> socket.socket:
    """Return a socket that already listens on `host` and `port`; port 0 picks a free one.

    `server` says how much its connections may buffer (bytes) and how long they may stall (seconds).

    Raises:
        ConfigurationError: `host` is no address of any machine.
        CannotStart: the port is in use or not allowed, or `host` is no address of this machine.
    """
    server = server or ServerConfig()
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"host {host} cannot be resolved: {error.strerror}.", param="host") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bound_buffers(listener, server.send_buffer)
        _detect_dead_peers(listener, server.stall_timeout)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host and --port, "
            "or end the program that uses it.",
            param="port",
        ) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address to type into a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def patience_s(stall_timeout_s: float) -> float:
    """Return how long bytes may stay unacknowledged before the kernel gives a connection up; 0 is its own default.

    A stall timeout of 0 allows readers to stall for ever.
    """
    return max(DEAD_PEER_S, stall_timeout_s + STALL_MARGIN_S) if stall_timeout_s else 0


def _bound_buffers(listener: socket.socket, send_buffer: int) -> None:
    """Let the kernel hold little of what a client has not taken."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    _set_where_known(listener, "TCP_NOTSENT_LOWAT", UNSENT_BYTES)


def _detect_dead_peers(listener: socket.socket, stall_timeout_s: float) -> None:
    """Switch on keep-alive and, where the system has them (Linux), the timers for it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set_where_known(listener, "TCP_KEEPIDLE", DEAD_PEER_S - 2 * PROBE_INTERVAL_S)
    _set_where_known(listener, "TCP_KEEPINTVL", PROBE_INTERVAL_S)
    _set_where_known(listener, "TCP_KEEPCNT", 2)
    _set_where_known(listener, "TCP_USER_TIMEOUT", min(round(patience_s(stall_timeout_s) * 1000), _MAX_INT))


def _set_where_known(listener: socket.socket, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
