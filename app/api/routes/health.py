"""`/livez`, `/readyz`, `/health` and `/metrics`: the routes for load balancers and monitors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.access_log import access_record
from app.api.http.context import context_of
from app.contract.engine_status import EngineHealth, EngineState
from app.contract.errors import ServiceUnavailable
from app.runtime.clock import Clock, monotonic

# The share of `--watchdog-timeout` without progress after which no more requests should be sent here.
STALLED_SHARE = 0.5
# Of the loop's time: clients that request `/metrics` all the time do not delay others.
METRICS_SHARE = 0.1


async def livez(request: Request) -> Response:
    """Answer 200 unless the engine has failed, by itself or by the watchdog: then only a restart helps."""
    health = context_of(request).engine.health()
    return _response(request, health, is_good=health.state is not EngineState.FAILED)


async def readyz(request: Request) -> Response:
    """Answer 200 only if a request would be accepted and make progress. Also `/health`."""
    context = context_of(request)
    health = context.engine.health()
    stalled_s = monotonic() - health.last_progress_time
    limit_s = STALLED_SHARE * context.config.server.watchdog_timeout
    if health.state is EngineState.READY and health.is_busy and 0 < limit_s <= stalled_s:
        message = f"The engine has work and has made no progress for {stalled_s:.1f} s."
        health = replace(health, state=EngineState.FAILED, message=message)
    return _response(request, health, is_good=health.state is EngineState.READY)


class MetricsPage:
    """`/metrics` in Prometheus' text format; rendering takes at most `METRICS_SHARE` of the loop's time.

    Requests of about the same time get the same page, which was rendered after they were received. Loop only.
    """

    def __init__(self, render: Callable[[], bytes], *, clock: Clock = monotonic) -> None:
        self._render = render
        self._clock = clock
        self._next: asyncio.Future[bytes] | None = None
        self._earliest = 0.0

    async def show(self, request: Request) -> Response:
        """Answer with the page that is rendered next. Cancel-safe. Raises what `render` raises."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(max(0.0, self._earliest - self._clock()), self._render_next)
        return Response(await asyncio.shield(self._next), media_type=CONTENT_TYPE_LATEST)

    def _render_next(self) -> None:
        page, self._next = self._next, None
        assert page is not None
        began = self._clock()
        try:
            page.set_result(self._render())
        except Exception as error:
            page.set_exception(error)
        now = self._clock()
        self._earliest = now + (now - began) * (1 / METRICS_SHARE - 1)


def _response(request: Request, health: EngineHealth, *, is_good: bool) -> Response:
    """Answer 200 or 503. The health's message can name folders and files: only requests with a valid key get it."""
    access_record(request.scope).reason = health.state
    fields: dict[str, object] = {"status": health.state, "progress": health.progress}
    if health.message and context_of(request).keys.check_headers(request.headers):
        fields["message"] = health.message
    headers = {"cache-control": "no-store"}
    if not is_good:
        headers["retry-after"] = str(ServiceUnavailable.retry_after_s)
    return Response(orjson.dumps(fields), 200 if is_good else 503, headers, "application/json")
