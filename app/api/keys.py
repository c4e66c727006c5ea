"""The API keys of one server: who may ask, and whose work a request is."""

from __future__ import annotations

import hashlib
import hmac
import re

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.api.accounts import Sender
from app.config.settings import ServerConfig, tenants

# The scheme has no case, and any blanks may follow it (RFC 9110, section 11).
_BEARER = re.compile(r"[ \t]*bearer[ \t]+(.*?)[ \t]*", re.IGNORECASE | re.DOTALL)


class ApiKeys:
    """Checks keys; a server without any lets everybody in. Any thread."""

    def __init__(self, server: ServerConfig) -> None:
        self._tenants = tenants(server)
        self._digests = [_digest(key) for key in server.api_key]

    def name_of(self, key: str | None) -> str | None:
        """Return the name of one of this server's keys (see `tenants`), None for any other.

        How long it takes does not depend on the keys.
        """
        digest = _digest(key or "")
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return self._tenants[found.index(True)] if key is not None and any(found) else None

    def check(self, key: str | None) -> bool:
        """Whether `key` opens this server."""
        return not self._digests or self.name_of(key) is not None

    def check_headers(self, headers: Headers) -> bool:
        """Whether a request's `Authorization: Bearer` or `x-api-key` opens this server; each may be sent once."""
        if len(headers.getlist("authorization")) > 1 or len(headers.getlist("x-api-key")) > 1:
            return not self._digests
        keys = _keys_in(headers)
        return all(map(self.check, keys)) if keys else self.check(None)

    def sender_of(self, connection: HTTPConnection) -> Sender:
        """Return who sent what came on `connection`, which its headers let in (see `check_headers`)."""
        return Sender.of(self.name_of(next(iter(_keys_in(connection.headers)), None)), connection)


def _keys_in(headers: Headers) -> list[str]:
    """The keys that a request brings; a header of another kind than ours brings an empty one."""
    return [*map(_bearer_key, headers.getlist("authorization")), *headers.getlist("x-api-key")]


def _bearer_key(value: str) -> str:
    match = _BEARER.fullmatch(value)
    return match[1] if match else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
