"""The listening socket, with options that every accepted connection inherits (on Linux); uvicorn cannot set them.

The options limit the bytes that the kernel buffers for a client that reads slowly, and detect dead peers.
"""

from __future__ import annotations

import socket

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


def url_of(listener: socket.socket) -> str:
    """Return the URL of the server for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def unacknowledged_timeout_s(stall_timeout_s: float) -> float:
    """Return how long bytes may stay unacknowledged before the kernel drops a connection; 0 is the kernel's default.

    A stall timeout of 0 allows clients to stall for ever.
    """
    return max(DEAD_PEER_S, stall_timeout_s + STALL_MARGIN_S) if stall_timeout_s else 0


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
