"""The listening socket: ours, so that its options reach every accepted connection.

On Linux accepted sockets inherit the options below from the listening one, which uvicorn offers no way to set.
"""

from __future__ import annotations

import socket

from app.errors import CannotStart, ConfigurationError

BACKLOG = 512
# A peer that vanished without a FIN (a closed laptop, a dropped link) is noticed after this long: by unanswered
# keep-alive probes while nothing is sent, by unacknowledged bytes while something is.
DEAD_PEER_S = 30
PROBE_INTERVAL_S = 10


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that already listens on `host` and `port`; port 0 picks a free one.

    Raises:
        ConfigurationError: `host` is no address of any machine.
        CannotStart: the port is in use or not allowed, or `host` is no address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"host {host} cannot be resolved: {error.strerror}.", param="host") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _detect_dead_peers(listener)
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


def _detect_dead_peers(listener: socket.socket) -> None:
    """Switch on keep-alive and, where the system has them (Linux), the timers for it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", DEAD_PEER_S - 2 * PROBE_INTERVAL_S),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", DEAD_PEER_S * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
