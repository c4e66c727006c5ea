"""The server under load: where it listens, and how a request to it begins."""

from __future__ import annotations

import socket
import ssl
import urllib.parse
from typing import Any, NamedTuple

from app.contract.errors import CannotStart, ConfigurationError

PORTS = {"http": 80, "https": 443}


class Target(NamedTuple):
    """An address that was looked up once, so that no request waits for a name; `source` is the client's own."""

    url: str
    host: str
    port: int
    path: str
    address: str
    tls: ssl.SSLContext | None = None
    key: str | None = None
    source: str | None = None

    @property
    def connecting(self) -> dict[str, Any]:
        """What `asyncio.open_connection` is to be told."""
        found: dict[str, Any] = {"host": self.address, "port": self.port}
        if self.source is not None:
            found["local_addr"] = (self.source, 0)
        return found | {"ssl": self.tls, "server_hostname": self.host} if self.tls else found

    def get(self, path: str) -> bytes:
        """Return the bytes of a GET; `path` begins with a slash."""
        return self._head("GET", path).encode() + b"\r\n"

    def post(self, path: str, body: bytes) -> bytes:
        """Return the bytes of a POST of JSON; `path` begins with a slash."""
        about_body = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return (self._head("POST", path) + about_body).encode() + body

    def _head(self, method: str, path: str) -> str:
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        place = f"[{self.host}]" if ":" in self.host else self.host
        return f"{method} {self.path}{path} HTTP/1.1\r\nhost: {place}:{self.port}\r\nconnection: close\r\n{key}"


def find_target(url: str, key: str | None = None) -> Target:
    """Return the server of a URL (`http://host:port`, with or without /v1). Blocks while the name is looked up.

    Raises:
        ConfigurationError: `url` is no HTTP address, or has a password in it; the key is no header's value.
        CannotStart: nobody knows the name.
    """
    parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in PORTS or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise ConfigurationError(f"URL is {url!r}; it must look like http://127.0.0.1:8000", param="url")
    if "@" in parts.netloc:
        raise ConfigurationError("a URL with a password is not taken; use --api-key", param="url")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigurationError("--api-key must be printable ASCII", param="api_key")
    host, port = parts.hostname, port or PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotStart(f"cannot find {host}: {getattr(error, 'strerror', error)}", param="url") from None
    addresses = [str(each[4][0]) for each in found]
    address = next((each for each in addresses if ":" not in each), addresses[0])  # servers listen on IPv4 at least
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(f"{parts.scheme}://{parts.netloc}{path}", host, port, path, address, tls, key)
