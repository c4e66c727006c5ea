"""`/livez`, `/readyz`, `/health` and `/metrics`: what load balancers and monitors ask."""

from __future__ import annotations

from dataclasses import replace

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.api.context import context_of
from app.errors import ServiceUnavailable
from app.messages import EngineHealth, EngineState


async def livez(request: Request) -> Response:
    """Answer 200 unless the engine has failed: then only a restart helps."""
    health = _health(request)
    return _response(health, is_good=health.state is not EngineState.FAILED)


async def readyz(request: Request) -> Response:
    """Answer 200 only when a request would be taken: loaded, working, not draining. Also `/health`."""
    health = _health(request)
    return _response(health, is_good=health.state is EngineState.READY)


async def metrics(request: Request) -> Response:
    """Answer with all metrics in Prometheus' text format."""
    return Response(context_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _health(request: Request) -> EngineHealth:
    """Return the server's health, with its message only for those who may know: it can name folders and files."""
    context = context_of(request)
    health = context.health()
    return health if context.check_headers(request.headers) else replace(health, message="")


def _response(health: EngineHealth, *, is_good: bool) -> Response:
    fields: dict[str, object] = {"status": health.state, "progress": health.progress}
    if health.message:
        fields["message"] = health.message
    headers = {"cache-control": "no-store"}
    if not is_good:
        headers["retry-after"] = str(ServiceUnavailable.retry_after_s)
    return Response(orjson.dumps(fields), 200 if is_good else 503, headers, "application/json")
