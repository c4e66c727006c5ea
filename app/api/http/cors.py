"""Pages of other origins (`--allowed-origins`): which may use the server, over HTTP and WebSockets alike.

Browsers let any page send requests to any server, but show it only responses that name its origin; before requests with
a key or a JSON body they ask, without the key, whether the page may send them (a preflight). WebSockets have no such
question, so their Origin is checked when they are opened (`check_origin`). Cookies are never used, so
`Access-Control-Allow-Credentials` is never sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.access_log import access_record
from app.config.settings import ServerConfig
from app.contract.errors import PermissionDenied

ANY = "*"
_METHODS = "GET, HEAD, POST, DELETE"
_EXPOSED = (
    "idempotent-replayed, request-id, retry-after, x-quire-durable, x-quire-ignored, x-quire-position, "
    "x-quire-recovered, x-quire-state, x-quire-stream-id, x-request-id, x-session-id"
)
_MAX_AGE_S = 600
# SDKs send headers of their own, so that the names that a page asks for are allowed as they are.
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_\-, ]{1,2048}")


class Cors:
    """Answers preflights of allowed origins, and names the origin in the responses to their requests."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self.app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if not is_allowed(origin, self._origins):
            return await self.app(scope, receive, _with_headers(send, {"vary": "Origin"}))
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            return await _answer_preflight(headers, origin, scope, send)
        allowed = {"vary": "Origin", "access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED}
        return await self.app(scope, receive, _with_headers(send, allowed))


def allowed_origins(server: ServerConfig) -> frozenset[str]:
    """Return the further origins that may use the server, in lower case; "*" allows all."""
    return frozenset(origin.lower().rstrip("/") for origin in server.allowed_origins)


def is_allowed(origin: str, origins: Collection[str]) -> bool:
    """Return whether an Origin header names one of `origins`."""
    return bool(origin) and (origin.lower() in origins or ANY in origins)


def check_origin(headers: Headers, server: ServerConfig) -> None:
    """Reject WebSockets of pages of other origins: browsers let any page open one to any server.

    The origin's host and port are compared with the Host header; the scheme may differ behind a proxy that ends TLS. A
    missing Origin is accepted, because every browser sends one.

    Raises:
        PermissionDenied: the page is of another origin, which is not allowed.
    """
    allowed = allowed_origins(server)
    host = headers.get("host", "").lower()
    for origin in map(str.lower, headers.getlist("origin")):
        scheme, _, authority = origin.partition("://")
        if not is_allowed(origin, allowed) and not (scheme in ("http", "https") and authority == host):
            raise PermissionDenied(
                f"WebSockets from the origin {origin[:100]!r} are not allowed; add it with --allowed-origins."
            )


async def _answer_preflight(headers: Headers, origin: str, scope: Scope, send: Send) -> None:
    """Allow the request that a page asks for; whether it is answered depends on its key."""
    access_record(scope).reason = "preflight"
    answer = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": _METHODS,
        "access-control-max-age": str(_MAX_AGE_S),
        "vary": "Origin, Access-Control-Request-Headers",
    }
    wanted = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        answer["access-control-allow-headers"] = wanted
    # A page of a public address may only reach a private one that agrees to it.
    if headers.get("access-control-request-private-network") == "true":
        answer["access-control-allow-private-network"] = "true"
    await send({"type": "http.response.start", "status": 204, "headers": MutableHeaders(answer).raw})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, added: dict[str, str]) -> Send:
    """Return a `send` that adds headers to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            vary = ", ".join(filter(None, [headers.get("vary"), added["vary"]]))
            headers.update({**added, "vary": vary})
            message["headers"] = headers.raw
        await send(message)

    return sending
