"""`/livez`, `/readyz` and `/health`: the routes for load balancers."""

from __future__ import annotations

from dataclasses import replace

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.api.http.access_log import access_record
from app.api.http.context import context_of
from app.contract.engine_status import EngineHealth, EngineState
from app.contract.errors import ServiceUnavailable
from app.runtime.clock import monotonic

# The share of `--watchdog-timeout` without progress after which no more requests should be sent here.
STALLED_SHARE = 0.5


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
