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

from app.api.connection import connection_of
from app.api.disconnect import ClientStalled
from app.api.error_response import FROM_OUTSIDE, error_response, note_reason
from app.api.stream_log import ANSWER
from app.config.settings import ServerConfig
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, EngineFailed, HostNotAllowed, HttpInvalid, InvalidApiKey, QuireError
from app.observe.log import log_request
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
        began = self._clock()
        scope.setdefault("state", {})
        answer = _Answer(scope, send)
        try:
            await self.app(scope, receive, answer.send)
        except ClientStalled:
            note_reason(scope, "client_stalled")
        except ClientDisconnect:
            note_reason(scope, "client_disconnected")
        except asyncio.CancelledError:
            await self._stop(scope, receive, answer)
        except FROM_OUTSIDE:
            raise
        except BaseException:
            note_reason(scope, EngineFailed.code)
            logging.getLogger(__name__).exception("a request failed for a reason of our own")
            if not answer.has_begun:
                error = EngineFailed("The server made a mistake; its log says more, under this x-request-id.")
                await error_response(error.info())(scope, receive, answer.send)
        finally:
            answer.log(self._clock() - began)
        return None

    async def _stop(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """The server stops, and does not wait for this request any more: only it cancels the task of a request."""
        note_reason(scope, Draining.code)
        if not answer.has_begun and scope["type"] == "http":
            error = Draining("The server was stopped before the request was answered.")
            await error_response(error.info())(scope, receive, answer.send)
        else:
            connection_of(scope).abort()
            await asyncio.sleep(0)  # until the server knows


class _Answer:
    """The `send` of one request, with the headers every answer has; remembers how the answer began and ended."""

    def __init__(self, scope: Scope, send: Send) -> None:
        headers = Headers(scope=scope)
        self._scope = scope
        self._send = send
        self._request_id = _echoable(headers.get("x-request-id")) or secrets.token_hex(16)
        self._session_id = _echoable(headers.get("x-session-id"))
        scope["state"]["request_id"] = self._request_id
        self._status = 0
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if not self.has_begun:
            self._begin(message)
        elif message["type"] == "websocket.close":
            note_reason(self._scope, f"closed_{message.get('code', 1000)}")
        await self._send(message)

    def log(self, duration_s: float) -> None:
        scope = self._scope
        reason = scope.get("state", {}).get("reason")
        log_request(
            is_routine=_is_open(scope["path"]) and (self._status < 400 or reason in _ROUTINE_STATES),
            request_id=self._request_id,
            session_id=self._session_id,
            client=(scope.get("client") or [None])[0],
            method=scope.get("method", "WEBSOCKET"),
            path=scope["path"],
            status=self._status,
            reason=reason,
            duration_ms=round(duration_s * 1000, 3),
            **scope.get("state", {}).get(ANSWER, {}),
        )

    def _begin(self, message: Message) -> None:
        self.has_begun = True
        self._status = {"websocket.accept": 101, "websocket.close": 403}.get(message["type"]) or message["status"]
        if message["type"] == "websocket.close":
            return
        headers = MutableHeaders(raw=list(message.get("headers", ())))
        headers["x-request-id"] = self._request_id
        if self._session_id is not None:
            headers["x-session-id"] = self._session_id
        message["headers"] = headers.raw


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
    note_reason(scope, error.code)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.ws_close_code})
        return
    await error_response(error.info())(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _echoable(value: str | None) -> str | None:
    return value if value is not None and _TOKEN.fullmatch(value) else None
