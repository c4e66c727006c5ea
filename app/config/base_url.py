"""The URL of a server as people type it: with or without `http://`, with or without the `/v1` of OpenAI's clients."""

from __future__ import annotations

import urllib.parse
from typing import NamedTuple

from app.contract.errors import ConfigurationError

PORTS = {"http": 80, "https": 443}
_WEBSOCKETS = {"ws": "http", "wss": "https"}
_ROUTES = ("/v1/chat/completions", "/v1/chat", "/v1/models", "/v1", "/ws")


class BaseUrl(NamedTuple):
    """A server's address, and the path before its routes: empty, or `/llm` behind a proxy."""

    scheme: str
    host: str
    port: int
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def read_base_url(given: str, source: str) -> BaseUrl:
    """Return the parts of a URL; `source` is the name of the option or argument in error messages.

    A trailing slash, `/v1`, routes below it and `/ws` are left out: the routes add their own. The path has only ASCII
    then.

    Raises:
        ConfigurationError: it is no HTTP URL, or contains a password.
    """
    text = given.strip()
    try:
        if not text.isprintable() or " " in text:  # urlsplit leaves line ends and tabs out
            raise ValueError(text)
        parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
        (parts.hostname or "").encode("idna")  # as sockets do
    except ValueError:
        parts, port = urllib.parse.SplitResult("", "", "", "", ""), 0
    scheme = _WEBSOCKETS.get(parts.scheme, parts.scheme)
    if scheme not in PORTS or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{source} is {given!r:.200}; it must look like http://127.0.0.1:8000, without blanks", param="url"
        )
    if "@" in parts.netloc:
        raise ConfigurationError("a URL must not contain a password; use --api-key", param="url")
    path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~").rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route).rstrip("/")
    return BaseUrl(scheme, parts.hostname, port or PORTS[scheme], parts.netloc, path)
