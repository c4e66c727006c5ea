"""`GET /v1/engine/events`: the figures of the engine as server-sent events, for `curl`, dashboards and `quire top`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.connection import ClientStalled, connection_of
from app.api.http.context import ApiContext, context_of
from app.contract.engine_figures import MAX_INTERVAL_S, MIN_INTERVAL_S, EngineFigures
from app.contract.engine_status import EngineState
from app.contract.errors import Draining, InvalidValue, RateLimitExceeded

EVENTS_PATH = "/v1/engine/events"
MAX_STREAMS = 64


class EngineEvents:
    """Sends what `read` returns, once in an interval, until the client leaves or the server drains. Loop only."""

    def __init__(self, read: Callable[[], EngineFigures]) -> None:
        self._read = read
        self._num_streams = 0

    async def engine_events(self, request: Request) -> ASGIApp:
        """Answer with the stream.

        Raises:
            InvalidValue: the interval is not one.
            RateLimitExceeded: too many streams are open.
            Draining: the server is shutting down.
        """
        context = context_of(request)
        interval_s = _interval(request.query_params.get("interval", "1"))
        if context.engine.health().state is EngineState.DRAINING:
            raise Draining("The server is shutting down.")
        if self._num_streams >= MAX_STREAMS:
            raise RateLimitExceeded(f"{MAX_STREAMS} streams of figures are open already; end some, or try again later.")
        return self._app(context, interval_s)

    def _app(self, context: ApiContext, interval_s: float) -> ASGIApp:
        # Imported when it is needed: it takes time, and replaces a method of uvicorn's server, which ours never calls.
        from sse_starlette.sse import EventSourceResponse, SendTimeoutError

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            self._num_streams += 1
            stall_timeout_s = context.config.server.stall_timeout or None
            events = self._events(context, interval_s)
            try:
                await EventSourceResponse(events, sep="\n", send_timeout=stall_timeout_s)(scope, receive, send)
            except SendTimeoutError:
                connection_of(scope).abort()
                raise ClientStalled from None
            finally:
                self._num_streams -= 1

        return respond

    async def _events(self, context: ApiContext, interval_s: float) -> AsyncIterator[dict[str, str]]:
        is_over = asyncio.Event()
        with context.drain.listening(lambda _: is_over.set()):
            while not is_over.is_set():
                yield {"data": msgspec.json.encode(self._read()).decode()}
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), interval_s)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise InvalidValue(
            f"interval must be a number of seconds from {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}, not {text[:100]!r}.",
            param="interval",
        )
    return seconds
