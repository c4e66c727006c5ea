"""The ASGI application: routes, what every request passes, and what lives as long as the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from app.api.chat import chat_completions
from app.api.completions import completions
from app.api.context import ApiContext, StreamTimers
from app.api.error_response import answer_http_exception, answer_quire_error
from app.api.health import livez, metrics, readyz
from app.api.middleware import HostGuard, KeyGuard, Trace, allowed_hosts
from app.api.models import get_model, list_models
from app.api.page import Page
from app.api.schemas import learn_body_types
from app.api.websocket import websocket_endpoint
from app.config.settings import Config, served_name
from app.contract.errors import QuireError
from app.contract.ports import EngineClient
from app.observe.metrics import Metrics
from app.runtime.clock import monotonic
from app.text.frontend import TextFrontend

API_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/completions")


def create_app(
    engine: EngineClient,
    config: Config,
    *,
    observed: Metrics | None = None,
    timers: StreamTimers | None = None,
    text: TextFrontend | None = None,
) -> Starlette:
    """Return the application that serves `engine` under `config`.

    The caller starts, drains and closes the engine. `observed` are metrics that the engine's step reports feed
    (`AsyncEngine(..., observe=observed.observe)`); without them `/metrics` shows an idle engine.
    Without `text` the application loads tokenizer and chat template itself when it starts.
    """
    learn_body_types()
    own_metrics = observed or Metrics(served_name(config.model), config.cache)
    context = ApiContext(engine, config, own_metrics, timers or StreamTimers(), text)
    hosts, allow_addresses = allowed_hosts(config.server)
    page = Page()
    app = Starlette(
        routes=[
            Route("/", page.index),
            Route("/static/{name:path}", page.file),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/health", readyz),
            Route("/metrics", metrics),
            Route("/v1/models", list_models),
            Route("/v1/models/{model:path}", get_model),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            WebSocketRoute("/ws", websocket_endpoint),
        ],
        middleware=[
            Middleware(Trace, clock=monotonic),
            Middleware(HostGuard, allowed=hosts, allow_addresses=allow_addresses),
            Middleware(KeyGuard, check=context.keys.check_headers),
        ],
        exception_handlers={QuireError: answer_quire_error, HTTPException: _answer_http_exception},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # the router's own would name the scheme, which a proxy may have changed
    app.state.context = context
    return app


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Send a client that put a slash behind a path to the path without it, with its method and body."""
    given = str(request.scope["path"])
    path = given.removesuffix("/")
    is_meant = path != given and (path in API_PATHS or path.startswith("/v1/models/"))
    if isinstance(error, HTTPException) and error.status_code == 404 and is_meant:
        query = f"?{request.url.query}" if request.url.query else ""
        return Response(status_code=307, headers={"location": quote(path) + query})
    return await answer_http_exception(request, error)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Load the model's text while the server already answers; at the end, stop its threads."""
    context: ApiContext = app.state.context
    loading = asyncio.create_task(context.text.load())
    try:
        yield
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        context.text.close()
