"""The server under load: its address, and the bytes of requests to it."""

from __future__ import annotations

import os
import socket
import ssl
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

import orjson

from app.config.base_url import read_base_url
from app.contract.errors import CannotStart, ConfigurationError
from app.loadgen.answer import read_rejection

MODELS_TIMEOUT_S = 30.0
MAX_BODY_BYTES = 4 << 20


class Target(NamedTuple):
    """A server whose name was resolved once, so that no request waits for DNS; `source` is the client's address."""

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
        """The arguments of `asyncio.open_connection`."""
        found: dict[str, Any] = {"host": self.address, "port": self.port}
        if self.source is not None:
            found["local_addr"] = (self.source, 0)
        return found | {"ssl": self.tls, "server_hostname": self.host} if self.tls else found

    def post(self, path: str, body: bytes) -> bytes:
        """Return the bytes of a POST of JSON; `path` begins with a slash."""
        about_body = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return (self.head("POST", path) + about_body).encode() + body

    def head(self, method: str, path: str) -> str:
        """Return the request line and the headers of any request; `path` begins with a slash."""
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        authority = f"[{self.host}]" if ":" in self.host else self.host
        return f"{method} {self.path}{path} HTTP/1.1\r\nhost: {authority}:{self.port}\r\nconnection: close\r\n{key}"


def find_target(url: str, key: str | None = None) -> Target:
    """Return the server of a URL (`http://host:port`, with or without /v1). Blocks while the name is resolved.

    Raises:
        ConfigurationError: `url` is not an HTTP URL or contains a password, or `key` cannot be sent in a header.
        CannotStart: the name cannot be resolved.
    """
    base = read_base_url(url, "URL")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigurationError("--api-key must be printable ASCII", param="api_key")
    try:
        found = socket.getaddrinfo(base.host, base.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotStart(f"cannot find {base.host}: {getattr(error, 'strerror', error)}", param="url") from None
    addresses = [str(each[4][0]) for each in found]
    address = next((each for each in addresses if ":" not in each), addresses[0])  # most servers listen on IPv4
    tls = ssl.create_default_context() if base.scheme == "https" else None
    return Target(str(base), base.host, base.port, base.path, address, tls, key)


def first_model(target: Target) -> str:
    """Return the first model that the server lists. Blocks.

    Raises:
        CannotStart: the server cannot be reached, does not answer in time, or fails (status 5xx).
        ConfigurationError: the answer lists no model.
    """
    kind = partial(HTTPSConnection, context=target.tls) if target.tls else HTTPConnection
    connection, status, content = kind(target.host, target.port, timeout=MODELS_TIMEOUT_S), 0, b""
    try:
        headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
        connection.request("GET", f"{target.path}/v1/models", headers=headers)
        response = connection.getresponse()
        status, content = response.status, response.read(MAX_BODY_BYTES)
    except TimeoutError:
        raise CannotStart(f"{target.url} does not answer within {MODELS_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise CannotStart(f"cannot connect to {target.url}: {reason(error)}") from None
    except HTTPException:
        pass  # reported below
    finally:
        connection.close()
    if status >= 500:
        raise CannotStart(f"{target.url}/v1/models: {': '.join(read_rejection(status, content))}")
    try:
        return str(orjson.loads(content)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        reply = ": ".join(read_rejection(status, content)) if status else "this is not HTTP"
        raise ConfigurationError(
            f"{target.url}/v1/models lists no model ({reply}); give --model, and --api-key if the server needs one"
        ) from None


def reason(error: OSError) -> str:
    """Return why a connection failed, in the system's words; asyncio's text repeats the address."""
    if error.errno is None or isinstance(error, ssl.SSLError):
        return str(error)
    return os.strerror(error.errno)
