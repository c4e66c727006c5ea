"""The API keys of one server, and the account that a request counts for.

An account is an API key; on a server without keys it is the address that the connection comes from. Of an IPv6 address
its /64 counts, for that is what one customer gets; an IPv4 address inside of one counts as IPv4. Headers that name
another address (`X-Forwarded-For`, `Forwarded`) are ignored: any client can send them. So all clients behind one
proxy are one account, unless they have keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.config.settings import ServerConfig, tenants

_SCHEME, _BLANKS = "bearer", " \t"
_PREFIX = 64  # bits of an IPv6 address


class Sender(NamedTuple):
    """The name of a request's key, None on a server without keys, and the account that its work counts for."""

    tenant: str | None = None
    account: str = ""


class ApiKeys:
    """Checks keys; a server without keys accepts every request. Any thread."""

    def __init__(self, server: ServerConfig) -> None:
        self._tenants = tenants(server)
        self._digests = [_digest(key) for key in server.api_key]

    def name_of(self, key: str | None) -> str | None:
        """Return the name of one of this server's keys (see `tenants`), None for any other.

        The time that this takes does not depend on the keys.
        """
        digest = _digest(key or "")
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return self._tenants[found.index(True)] if key is not None and any(found) else None

    @property
    def names(self) -> Sequence[str]:
        """The names of all keys."""
        return [name for name in self._tenants if name is not None]

    def digest_of(self, name: str) -> bytes:
        """Return the digest of the key of a name."""
        return self._digests[self._tenants.index(name)]

    def check(self, key: str | None) -> bool:
        """Return whether the server accepts requests with `key`."""
        return not self._digests or self.name_of(key) is not None

    def check_headers(self, headers: Headers) -> bool:
        """Return whether a request's `Authorization: Bearer` or `x-api-key` is accepted; each may be sent once."""
        if len(headers.getlist("authorization")) > 1 or len(headers.getlist("x-api-key")) > 1:
            return not self._digests
        keys = _keys_in(headers)
        return all(map(self.check, keys)) if keys else self.check(None)

    def sender_of(self, connection: HTTPConnection, key: str | None = None) -> Sender:
        """Return the sender of a request on `connection`: of `key`, or of the key in headers that were accepted."""
        name = self.name_of(next(iter(_keys_in(connection.headers)), key))
        if name is not None:
            return Sender(name, name)
        return Sender(None, account_of_address(connection.client.host if connection.client else ""))


@lru_cache(maxsize=1024)
def account_of_address(address: str) -> str:
    """Return the account of all clients with `address`; a text that is no address is an account of its own name."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _PREFIX), strict=False))


def _keys_in(headers: Headers) -> list[str]:
    """Return the keys in a request's headers; an Authorization of another scheme counts as an empty key."""
    return [*map(_bearer_key, headers.getlist("authorization")), *headers.getlist("x-api-key")]


def _bearer_key(value: str) -> str:
    # The scheme has no case, and any blanks may follow it (RFC 9110, section 11).
    value = value.strip(_BLANKS)
    scheme, key = value[: len(_SCHEME)], value[len(_SCHEME) :]
    return key.lstrip(_BLANKS) if scheme.lower() == _SCHEME and key.startswith(tuple(_BLANKS)) else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
