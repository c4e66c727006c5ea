"""The ASGI application: routes, middleware and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute

from app.api.chat import chat_completions
from app.api.completions import completions
from app.api.context import ApiContext, StreamTimers
from app.api.error_response import handle_http_exception, handle_quire_error
from app.api.health import MetricsPage, livez, readyz
from app.api.middleware import RequestChecks, Trace, allowed_hosts, check_host, check_key
from app.api.models import get_model, list_models
from app.api.page import Page
from app.api.schemas import learn_body_types
from app.api.websocket import websocket_endpoint
from app.config.settings import Config
from app.contract.errors import QuireError
from app.contract.ports import EngineClient
from app.observe.metrics import Metrics
from app.runtime.clock import monotonic
from app.text.frontend import TextFrontend


def create_app(
    engine: EngineClient,
    config: Config,
    text: TextFrontend,
    metrics: Metrics,
    timers: StreamTimers | None = None,
) -> Starlette:
    """Return the application that serves `engine` under `config`, with the model's `text` frontend.

    The caller starts, drains and closes the engine, and passes its step reports to `metrics.observe`.
    """
    learn_body_types()
    context = ApiContext(engine, config, text, timers or StreamTimers())
    metrics.count_streams(context.streams)
    checks = [partial(check_host, *allowed_hosts(config.server)), partial(check_key, context.keys)]
    page = Page()
    app = Starlette(
        routes=[
            Route("/", page.file),
            Route("/static/{name:path}", page.file),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/health", readyz),
            Route("/metrics", MetricsPage(metrics.render).show),
            Route("/v1/models", list_models),
            Route("/v1/models/{model:path}", get_model),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            WebSocketRoute("/ws", websocket_endpoint),
        ],
        middleware=[Middleware(Trace, clock=monotonic), Middleware(RequestChecks, checks=checks)],
        exception_handlers={QuireError: handle_quire_error, HTTPException: handle_http_exception},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # Starlette's redirect contains the scheme, which a proxy may have changed
    app.state.context = context
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Stop the threads that parse requests when the server ends."""
    try:
        yield
    finally:
        app.state.context.close()
