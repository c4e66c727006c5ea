"""What every request passes on its way in, as plain ASGI: Trace (outermost), HostGuard, KeyGuard (innermost).

Plain ASGI because a wrapped `send` costs 0.1 us per event, Starlette's BaseHTTPMiddleware 16 us.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access_log import AccessRecord, access_record
from app.api.connection import connection_of
from app.api.disconnect import ClientStalled
from app.api.error_response import FROM_OUTSIDE, error_response
from app.config.settings import ServerConfig
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, EngineFailed, HostNotAllowed, HttpInvalid, InvalidApiKey, QuireError
from app.runtime.clock import Clock

OPEN_PATHS = frozenset({"/", "/livez", "/readyz", "/health"})
OPEN_PREFIX = "/static/"
# What a probe may hear, again and again, of a server that is as it should be.
_ROUTINE_STATES = frozenset({EngineState.LOADING, EngineState.DRAINING})
# A browser cannot set headers on a WebSocket: there the key may also come in the first frame.
HELLO_PATHS = frozenset({"/ws"})
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")
_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::\d+)?")
_ADDRESS = re.compile(r"\[.+\]|\d+\.\d+\.\d+\.\d+")


class Trace:
    """Names each request, answers what nobody caught, and writes its line in the access log."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self.app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        began, headers = self._clock(), Headers(scope=scope)
        record = access_record(scope)
        record.request_id = _echoable(headers.get("x-request-id")) or secrets.token_hex(16)
        record.session_id = _echoable(headers.get("x-session-id"))
        traced = _traced_send(record, send)
        try:
            await self.app(scope, receive, traced)
        except ClientStalled:
            record.reason = "client_stalled"
        except ClientDisconnect:
            record.reason = "client_disconnected"
        except asyncio.CancelledError:  # only the server's shutdown cancels the task of a request
            record.reason = Draining.code
            if not record.status and scope["type"] == "http":
                error: QuireError = Draining("The server was stopped before the request was answered.")
                await error_response(error.info())(scope, receive, traced)
            else:
                connection_of(scope).abort()
                await asyncio.sleep(0)  # until the server knows
        except FROM_OUTSIDE:
            raise
        except BaseException:
            record.reason = EngineFailed.code
            logging.getLogger(__name__).exception("internal error in a request")
            if not record.status:
                error = EngineFailed("Internal error; see the server log for this x-request-id.")
                await error_response(error.info())(scope, receive, traced)
        finally:
            is_routine = _is_open(scope["path"]) and (record.status < 400 or record.reason in _ROUTINE_STATES)
            record.write(scope, self._clock() - began, is_routine=is_routine)
        return None


def _traced_send(record: AccessRecord, send: Send) -> Send:
    """Return a `send` that adds the headers every answer has, and notes how the answer begins and ends."""

    async def traced(message: Message) -> None:
        kind = message["type"]
        if record.status:
            if kind == "websocket.close":
                record.reason = f"closed_{message.get('code', 1000)}"
        elif kind == "websocket.close":
            record.status = 403
        else:
            record.status = 101 if kind == "websocket.accept" else message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            headers["x-request-id"] = record.request_id
            if record.session_id is not None:
                headers["x-session-id"] = record.session_id
            message["headers"] = headers.raw
        await send(message)

    return traced


class HostGuard:
    """Answers only for the hosts it was told: a page of another origin that rebinds its name to us gets 421."""

    def __init__(self, app: ASGIApp, allowed: Collection[str], *, allow_addresses: bool = False) -> None:
        self.app = app
        self._allowed = frozenset(host.lower() for host in allowed)
        self._allow_addresses = allow_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request for an allowed host, refuse others."""
        if scope["type"] == "lifespan" or "*" in self._allowed:
            return await self.app(scope, receive, send)
        try:
            self._check(Headers(scope=scope).getlist("host"))
        except QuireError as error:
            return await refuse(error, scope, receive, send)
        return await self.app(scope, receive, send)

    def _check(self, hosts: list[str]) -> None:
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise HttpInvalid("Send exactly one Host header that holds a host name or address and, at most, a port.")
        name = match[1].lower()
        # An address cannot be rebound, only a name can.
        if name not in self._allowed and not (self._allow_addresses and _ADDRESS.fullmatch(name)):
            raise HostNotAllowed(
                f"This server does not answer for the host {name[:100]!r}; add it with --allowed-hosts."
            )


class KeyGuard:
    """Lets a request with a valid key through, and every request to the open paths; refuses the rest."""

    def __init__(self, app: ASGIApp, check: Callable[[Headers], bool]) -> None:
        self.app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] == "lifespan" or self._is_open(scope) or self._check(Headers(scope=scope)):
            return await self.app(scope, receive, send)
        error = InvalidApiKey("The API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key`.")
        return await refuse(error, scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        if scope["type"] == "websocket":
            headers = Headers(scope=scope)
            return path in HELLO_PATHS and not ("authorization" in headers or "x-api-key" in headers)
        return _is_open(path)


def allowed_hosts(server: ServerConfig) -> tuple[tuple[str, ...], bool]:
    """Return the hosts to answer for, and whether any literal address is one too (when bound to all of them)."""
    if server.allowed_hosts:
        return server.allowed_hosts, False
    if server.api_key:
        return ("*",), False
    host = f"[{server.host}]" if ":" in server.host and not server.host.startswith("[") else server.host
    return (*_LOCAL_NAMES, host), server.host in _ANY_ADDRESS


async def refuse(error: QuireError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error; for a WebSocket before its accept, as an HTTP answer where the server can."""
    access_record(scope).reason = error.code
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.ws_close_code})
        return
    await error_response(error.info())(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _echoable(value: str | None) -> str | None:
    return value if value is not None and _TOKEN.fullmatch(value) else None
