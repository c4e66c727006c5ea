"""The ASGI middleware of all requests: Trace (outermost), and RequestChecks of host and key.

Plain ASGI because a wrapped `send` costs 0.1 us per event, Starlette's BaseHTTPMiddleware 16 us.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Collection, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.access_log import AccessRecord, access_record
from app.api.http.accounts import ApiKeys
from app.api.http.connection import ClientStalled, connection_of
from app.api.http.error_response import FROM_OUTSIDE, SHAPES, error_response
from app.api.http.error_shape import ErrorShapes
from app.config.settings import ServerConfig
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, EngineFailed, HostNotAllowed, HttpInvalid, InvalidApiKey, QuireError
from app.observe.request_log import RequestLog
from app.runtime.clock import Clock
from app.streaming.kept.waiting_reader import StreamStopped

OPEN_PATHS = frozenset({"/", "/preview", "/livez", "/readyz", "/health"})
OPEN_PREFIX = "/static/"
METRICS_PATH = "/metrics"
# A probe gets these states again and again from a healthy server.
_ROUTINE_STATES = frozenset({EngineState.LOADING, EngineState.DRAINING})
# Browsers cannot set headers of a WebSocket: the key may also come in the first frame.
HELLO_PATHS = frozenset({"/ws", "/live"})
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")
_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::\d+)?")
_ADDRESS = re.compile(r"\[.+\]|\d+\.\d+\.\d+\.\d+")
Check = Callable[[Scope, Headers], None]


class Trace:
    """Gives each request an id, answers with an error if a handler raises, and writes the line of the access log."""

    def __init__(self, app: ASGIApp, clock: Clock, log: RequestLog, shapes: ErrorShapes) -> None:
        self.app = app
        self._clock = clock
        self._log = log
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        began, headers = self._clock(), Headers(scope=scope)
        record = access_record(scope)
        record.log = self._log
        scope[SHAPES] = self._shapes
        record.request_id = _echoable(headers.get("x-request-id")) or secrets.token_hex(16)
        record.session_id = _echoable(headers.get("x-session-id"))
        traced = _traced_send(record, send)
        try:
            await self.app(scope, receive, traced)
        except ClientStalled:
            record.reason = "client_stalled"
        except ClientDisconnect:
            record.reason = "client_disconnected"
        except (asyncio.CancelledError, StreamStopped):  # only the server's shutdown cancels the task of a request
            record.reason = Draining.code
            if not record.status and scope["type"] == "http":
                error: QuireError = Draining("The server was stopped before the request was answered.")
                await error_response(error.info(), scope)(scope, receive, traced)
            else:
                connection_of(scope).abort()
                await asyncio.sleep(0)  # the server notices the abort
        except FROM_OUTSIDE:
            raise
        except BaseException:
            record.reason = EngineFailed.code
            logging.getLogger(__name__).exception("internal error in a request")
            if not record.status:
                error = EngineFailed("Internal error; see the server log for this x-request-id.")
                await error_response(error.info(), scope)(scope, receive, traced)
        finally:
            is_routine = _is_routine(scope["path"]) and (record.status < 400 or record.reason in _ROUTINE_STATES)
            record.write(scope, self._clock() - began, is_routine=is_routine)
        return None


def _traced_send(record: AccessRecord, send: Send) -> Send:
    """Return a `send` that adds the headers of all responses, and records the status and a WebSocket's close code."""

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


class RequestChecks:
    """Rejects a request if one of `checks` raises an error; all of them apply to each request and WebSocket."""

    def __init__(self, app: ASGIApp, checks: Sequence[Check]) -> None:
        self.app = app
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            try:
                for check in self._checks:
                    check(scope, headers)
            except QuireError as error:
                return await reject(error, scope, receive, send)
        return await self.app(scope, receive, send)


def check_host(allowed: Collection[str], allow_addresses: bool, scope: Scope, headers: Headers) -> None:
    """Check the Host header: a page of another origin could have rebound its name to this server's address.

    Raises:
        HttpInvalid: there is not exactly one Host header, or it is malformed.
        HostNotAllowed: the host is not one of `allowed`, which are in lower case; "*" allows all.
    """
    if "*" in allowed:
        return
    hosts = headers.getlist("host")
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None:
        raise HttpInvalid("Send exactly one Host header that holds a host name or address and, at most, a port.")
    name = match[1].lower()
    # An address cannot be rebound, only a name can.
    if name not in allowed and not (allow_addresses and _ADDRESS.fullmatch(name)):
        raise HostNotAllowed(f"This server does not answer for the host {name[:100]!r}; add it with --allowed-hosts.")


def check_key(keys: ApiKeys, scope: Scope, headers: Headers) -> None:
    """Check the API key, unless the path is open.

    Raises:
        InvalidApiKey: the key is missing or wrong.
    """
    if scope["type"] == "websocket":
        has_key = "authorization" in headers or "x-api-key" in headers
        is_open = scope["path"] in HELLO_PATHS and not has_key
    else:
        is_open = _is_open(scope["path"])
    if not is_open and not keys.check_headers(headers):
        raise InvalidApiKey("The API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key`.")


def allowed_hosts(server: ServerConfig) -> tuple[frozenset[str], bool]:
    """Return the allowed hosts in lower case, and whether literal addresses are too (if bound to all addresses)."""
    if server.allowed_hosts:
        return frozenset(map(str.lower, server.allowed_hosts)), False
    if server.api_key:
        return frozenset({"*"}), False
    host = f"[{server.host}]" if ":" in server.host and not server.host.startswith("[") else server.host
    return frozenset({*_LOCAL_NAMES, host.lower()}), server.host in _ANY_ADDRESS


async def reject(error: QuireError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error; before a WebSocket is accepted, with an HTTP response if the server supports that."""
    access_record(scope).reason = error.code
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.ws_close_code})
        return
    await error_response(error.info(), scope)(scope, receive, send)


def _is_routine(path: str) -> bool:
    return _is_open(path) or path == METRICS_PATH


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _echoable(value: str | None) -> str | None:
    return value if value is not None and _TOKEN.fullmatch(value) else None
