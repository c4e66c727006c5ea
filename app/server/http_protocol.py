"""HTTP connections: uvicorn's protocol behind the guard, with one request at a time and a bounded write buffer.

    head ──complete, within limits──▶ body ──complete──▶ (response complete) ──▶ head ...
     │                                 └──malformed, late──▶ the application's `receive` raises the error
     └──malformed, late, too large──▶ rejected here: an error as JSON, close

The parser is fed exactly up to the end of a head and of a body, so that guard and parser must agree on where a request
ends. Bytes that arrive before the response is complete are held back; above a limit, reading pauses.

Each connection has one timer. When it fires, it checks for a missed deadline, and is set again if there is none.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn._types import ASGIReceiveCallable, ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.http.connection import EXTENSION, SEND
from app.contract.errors import HeadersTooLarge, HttpInvalid, QuireError, RateLimitExceeded, RequestTimeout, UrlTooLong
from app.server.guard import Guard
from app.server.guard_request import BodyFraming, check_headers
from app.server.sockets import SocketConnection
from app.server.until_close import VERSION, UntilClose

_HEAD_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"^upgrade:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


class _LingeringTransport(asyncio.Transport):
    """A transport whose `close` calls `end`, with the only methods that a response uses."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        super().__init__()
        self.write = transport.write  # type: ignore[method-assign]  # an attribute: each token goes through it
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.close = end  # type: ignore[method-assign]


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection, until it closes or becomes a WebSocket. Made by uvicorn. Event loop only."""

    def __init__(self, *, guard: Guard, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._guard = guard
        self._limits = guard.limits
        self._rejection: QuireError | None = None
        self._is_over = False  # further received bytes are dropped
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0  # when the current head or body began
        self._head_bytes = 0  # received of the current head
        self._head = b""  # the current head so far
        self._has_unsupported_upgrade = False  # the current head offers a protocol that this server does not support
        self._tail = b""  # the last bytes of the current head, which may contain the beginning of its end
        self._body: BodyFraming | None = None  # the incomplete body of the current request
        self._is_complete = False  # the parser has found the end of the request
        self._held = b""  # pipelined requests
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; reject it before anything is read if its address has too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(self._limits.write_high_bytes, self._limits.write_low_bytes)
        self._connection = SocketConnection(transport)
        self._address = self.client[0] if self.client else None
        self._began = self.loop.time()
        if not self._guard.enter(self._address):
            maximum = self._guard.max_connections
            self._reject(
                RateLimitExceeded(
                    f"This address has {maximum} open connections, the maximum (--max-connections-per-ip); close or "
                    "reuse some."
                )
            )
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that belongs to the connection."""
        self._connection.lost()
        self._guard.leave(self._address)
        self._end_reading()
        super().connection_lost(exc)
        if self.cycle is not None:
            _untie(self.cycle)
            self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse received bytes up to the end of the current request, and hold back the rest."""
        if self._is_over or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            while data:
                if self._body is not None:
                    data = self._read_body(self._body, data)
                elif self.cycle is None or self.cycle.response_complete:
                    data = self._read_head(data)
                else:
                    data = self._hold(data)
        except QuireError as error:
            self._reject(error)
        if self._timer is None and (self._body is not None or self._head_bytes) and not self._is_over:
            self._arm()

    def on_response_complete(self) -> None:
        """Continue with the next request, if it was received already."""
        _untie(self.cycle)
        super().on_response_complete()
        if self._held:
            held, self._held = self._held, b""
            self.data_received(held)

    # --- Reading ---------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes:
        """Feed the parser up to the end of the head; return the rest."""
        if not self._head_bytes and self.cycle is not None:
            self._began = self.loop.time()
            self.url = b""
        joined = self._tail + data
        found = joined.find(_HEAD_END)
        size = len(data) if found < 0 else found + len(_HEAD_END) - len(self._tail)
        room = self._limits.max_head_bytes - self._head_bytes
        end = size if size <= room else room
        part, rest = data[:end], data[end:]
        self._head_bytes += end
        self._tail = b"" if found >= 0 else joined[1 - len(_HEAD_END) :]
        cycle = self.cycle
        if self._feed_head(part) and self._should_upgrade():
            if rest:
                raise HttpInvalid("The request sends data after a WebSocket handshake; wait for the response first.")
            self.handle_websocket_upgrade()
        elif self.cycle is not cycle:
            self._end_head()
        else:
            self._check_url()
            if size > room:
                maximum = self._limits.max_head_bytes
                raise HeadersTooLarge(f"The request's headers are larger than {maximum} bytes; send shorter ones.")
        return rest

    def _feed_head(self, part: bytes) -> bool:
        """Feed a part of the head; return whether the request is an upgrade to another protocol.

        Some clients (Java's, by default) offer an upgrade to HTTP/2 with every first request. A server may ignore the
        offer, but the parser would treat the body as the other protocol: such a head is parsed again without the offer.
        """
        self._head += part
        try:
            return self._feed(part)
        except HttpInvalid:
            if not self._has_unsupported_upgrade:
                raise
        self._has_unsupported_upgrade, self._rejection = False, None
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return self._feed(_UPGRADE.sub(b"", self._head))

    def _end_head(self) -> None:
        self._head_bytes = 0
        self._head = b""
        if self._body is not None:
            self._began = self.loop.time()
        if self._is_complete is not (self._body is None):
            raise HttpInvalid("The end of the request is ambiguous; send one Content-Length or Transfer-Encoding.")

    def _read_body(self, body: BodyFraming, data: bytes) -> bytes:
        """Feed the parser up to the end of the body; return the rest."""
        size = body.take(data)
        self._feed(data if size == len(data) else data[:size])
        if self._is_complete is not body.is_complete:
            raise HttpInvalid("The end of the body is ambiguous; send one Content-Length or Transfer-Encoding.")
        if body.is_complete:
            self._body = None
        return data[size:]

    def _hold(self, data: bytes) -> bytes:
        """Keep pipelined requests; above a limit, pause reading. (A disconnect is only noticed while reading.)"""
        self._held += data
        if len(self._held) > self._limits.max_held_bytes:
            self.flow.pause_reading()
        return b""

    def _feed(self, data: bytes) -> bool:
        """Parse; return whether the request is an upgrade to another protocol."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserCallbackError:
            raise self._rejection or HttpInvalid("The request target is invalid; it must be a path.") from None
        except httptools.HttpParserError as error:
            raise HttpInvalid(f"The request is not valid HTTP/1.1: {error}.") from None
        return False

    # --- Callbacks of the parser; an exception stops it --------------------------------------------------------

    def on_headers_complete(self) -> None:
        """Check the head, and pass the request to the application."""
        try:
            self._body = self._check_head()
        except QuireError as error:
            self._rejection = error
            self.scope["method"] = self.parser.get_method().decode("ascii")  # for the log
            raise
        self._is_complete = False
        extensions: Any = {EXTENSION: self._connection}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self.cycle is not None:
            if self.scope["http_version"] == VERSION:
                self.cycle.send = UntilClose(self.cycle)  # type: ignore[method-assign]
            extensions[SEND] = self.cycle.send
            if self._body is not None:
                self.cycle.transport = _LingeringTransport(self.transport, self._end)
                self.cycle.receive = partial(self._receive, self.cycle.receive)  # type: ignore[method-assign]
        if not self.parser.should_upgrade():
            self.headers = []  # the parser appends trailers to it, which are not headers of the request

    def on_message_complete(self) -> None:
        """Note that the parser has found the end of a request."""
        self._is_complete = True
        super().on_message_complete()

    def _check_head(self) -> BodyFraming | None:
        self._check_url()
        body = check_headers(self.headers, self._limits)
        if self.parser.should_upgrade():
            is_websocket = self._should_upgrade()
            if body is not None:
                self._has_unsupported_upgrade = not is_websocket
                raise HttpInvalid("The WebSocket handshake has a body; leave out the body or the Upgrade header.")
            maximum = self._limits.max_handshake_bytes
            if is_websocket and self._head_bytes > maximum:
                raise HeadersTooLarge(
                    f"The headers of the WebSocket handshake are larger than {maximum} bytes; send shorter ones."
                )
        return body

    def _check_url(self) -> None:
        maximum = self._limits.max_url_bytes
        if len(self.url) > maximum:
            raise UrlTooLong(f"The URL is longer than {maximum} bytes; send long input in a body.")

    # --- Deadlines --------------------------------------------------------------------------------------------

    def _deadline(self) -> float | None:
        """Return the deadline of the current head or body; None if no request is being received."""
        limits = self._limits
        if self._body is not None:
            at_min_rate = max(limits.body_grace_s, self._body.num_bytes / limits.min_body_rate)
            return self._began + min(limits.body_timeout_s, at_min_rate)
        if self._head_bytes or self.cycle is None:
            return self._began + limits.head_timeout_s
        return None

    def _arm(self) -> None:
        """Set the timer to the deadline, or earlier: to the shortest of the timeouts."""
        deadline = self._deadline()
        if self._timer is None and deadline is not None:
            tick = min(self._limits.head_timeout_s, self._limits.body_grace_s, self._limits.body_timeout_s)
            self._timer = self.loop.call_later(min(tick, deadline - self.loop.time()), self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        deadline = self._deadline()
        if deadline is None or self.transport.is_closing():
            return
        if self.loop.time() < deadline:
            self._arm()
        elif self._body is not None:
            self._reject(RequestTimeout("The body of the request was not received in time; send it faster."))
        elif self._head_bytes:
            self._reject(RequestTimeout("The headers of the request were not received in time; send them at once."))
        else:
            self.transport.close()

    # --- Rejecting --------------------------------------------------------------------------------------------

    def _reject(self, error: QuireError) -> None:
        """End the connection with an error; the application sends it if it already has the request."""
        self._end_reading()
        cycle = self.cycle
        if self._body is None and (cycle is None or cycle.response_complete):
            self._write_rejection(error)
            self._linger()
        elif cycle.response_started:
            self.transport.close()
        else:
            self._rejection = error
            cycle.keep_alive = False
            cycle.message_event.set()

    def _end_reading(self) -> None:
        self._is_over = True
        self._held = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write_rejection(self, error: QuireError) -> None:
        target = self.url
        response = self._guard.rejection(
            error,
            self.server_state.default_headers,
            client=self.client,
            method=self.scope.get("method") if target else None,
            path=target.partition(b"?")[0][:200].decode("latin-1") or None,
            duration_s=self.loop.time() - self._began,
        )
        self.transport.write(response)

    def _end(self) -> None:
        """Close after the connection's last response; linger if the request's body is still being received."""
        if self._body is None:
            self.transport.close()
        else:
            self._end_reading()
            self._linger()

    def _linger(self) -> None:
        """Close after a pause: if unread bytes are left, closing resets the connection, which may drop the response."""
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(self._limits.linger_s, self.transport.close)

    async def _receive(self, receive: ASGIReceiveCallable) -> ASGIReceiveEvent:
        """Return the next event for the application; raise the error of the body, if there is one."""
        event = await receive()
        if self._rejection is not None and event["type"] == "http.request":
            raise self._rejection
        return event

    # --- WebSockets ------------------------------------------------------------------------------------------

    def handle_websocket_upgrade(self) -> None:
        """Hand over the connection, which stays counted until the WebSocket ends."""
        self._end_reading()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # which has this object: it is of no use any more


def _untie(cycle: RequestResponseCycle) -> None:
    """Let a request whose response is complete, or whose connection is lost, not refer to itself.

    The application has its `receive` and `send` already. Else all that the request has would wait for the collector.
    """
    cycle.scope["extensions"].pop(SEND, None)
    for name in ("receive", "send"):
        vars(cycle).pop(name, None)
