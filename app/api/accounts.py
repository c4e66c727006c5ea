"""Who sent a request: the key it came with, and the account that its work counts for.

An account is an API key; on a server without keys it is the address that the connection comes from. Of an IPv6 address
its /64 counts, for that is what one customer gets; an IPv4 address inside of one counts as IPv4. Headers that name
another address (`X-Forwarded-For`, `Forwarded`) are not believed: anybody can send them. So all clients behind one
proxy are one account, unless they have keys.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from starlette.requests import HTTPConnection

_PREFIX = 64  # bits of an IPv6 address


class Sender(NamedTuple):
    """The name of a request's key, None on a server without keys, and the account that its work counts for."""

    tenant: str | None = None
    account: str = ""

    @classmethod
    def of(cls, tenant: str | None, connection: HTTPConnection) -> Sender:
        """Return who sends on `connection` with the key of this name."""
        if tenant is not None:
            return cls(tenant, tenant)
        return cls(None, account_of_address(connection.client.host if connection.client else ""))


NOBODY = Sender()


def account_of_address(address: str) -> str:
    """Return the account of all that come from `address`; what is no address is an account of its own name."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _PREFIX), strict=False))
