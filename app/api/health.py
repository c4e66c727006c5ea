"""`/livez`, `/readyz`, `/health` and `/metrics`: what load balancers and monitors ask."""

from __future__ import annotations

from dataclasses import replace

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.api.access_log import access_record
from app.api.context import ApiContext, context_of
from app.contract.engine_status import EngineHealth, EngineState
from app.contract.errors import ServiceUnavailable
from app.runtime.clock import monotonic

# The share of `--watchdog-timeout` without progress after which no more requests should be sent here.
STALLED_SHARE = 0.5


async def livez(request: Request) -> Response:
    """Answer 200 unless the engine has failed, or was given up by the watchdog: then only a restart helps."""
    health = context_of(request).health()
    return _response(request, health, is_good=health.state is not EngineState.FAILED)


async def readyz(request: Request) -> Response:
    """Answer 200 only when a request would be taken and get on: loaded, not draining, not stalled. Also `/health`."""
    health = _health_with_stall(context_of(request))
    return _response(request, health, is_good=health.state is EngineState.READY)


async def metrics(request: Request) -> Response:
    """Answer with all metrics in Prometheus' text format."""
    return Response(await context_of(request).metrics_page.get(), media_type=CONTENT_TYPE_LATEST)


def _health_with_stall(context: ApiContext) -> EngineHealth:
    """Return the server's health; an engine that has work but makes no progress has failed until it does."""
    health = context.health()
    stalled_s = monotonic() - health.last_progress_time
    limit_s = STALLED_SHARE * context.config.server.watchdog_timeout
    if health.state is EngineState.READY and health.is_busy and 0 < limit_s <= stalled_s:
        message = f"The engine has work and has made no progress for {stalled_s:.1f} s."
        return replace(health, state=EngineState.FAILED, message=message)
    return health


def _response(request: Request, health: EngineHealth, *, is_good: bool) -> Response:
    """Answer 200 or 503; with the health's message only for those who may know: it can name folders and files."""
    access_record(request.scope).reason = health.state
    fields: dict[str, object] = {"status": health.state, "progress": health.progress}
    if health.message and context_of(request).keys.check_headers(request.headers):
        fields["message"] = health.message
    headers = {"cache-control": "no-store"}
    if not is_good:
        headers["retry-after"] = str(ServiceUnavailable.retry_after_s)
    return Response(orjson.dumps(fields), 200 if is_good else 503, headers, "application/json")
