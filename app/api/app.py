"""The ASGI application: routes, middleware and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Scope

from app.api.body.answer_journal import AnswerJournal
from app.api.body.grammar_trials import GrammarTrials
from app.api.body.schemas import learn_body_types
from app.api.http.context import ApiContext, StreamTimers
from app.api.http.cors import Cors, allowed_origins
from app.api.http.error_response import handle_http_exception, handle_quire_error
from app.api.http.error_shape import ErrorShapes
from app.api.http.middleware import METRICS_PATH, RequestChecks, Trace, allowed_hosts, check_host, check_key
from app.api.http.other_paths import is_named
from app.api.http.request_turns import RequestTurns
from app.api.http.socket_opening import saying_where
from app.api.routes.engine_events import EVENTS_PATH, EngineEvents
from app.api.routes.live_socket import live_endpoint
from app.api.routes.metrics_page import MetricsPage
from app.api.routes.openapi import OpenApiPage
from app.api.routes.operations import JOURNALED, OPERATIONS, RESPONSES_PATH, Handler, Operation, body_kinds
from app.api.routes.page import Page
from app.api.routes.preview import Preview
from app.api.routes.response_socket import responses_endpoint
from app.api.routes.websocket import websocket_endpoint
from app.config.settings import Config, ServerConfig
from app.config.step_target import step_target_s
from app.contract.errors import QuireError
from app.contract.ports import EngineClient
from app.journal.store import JournalStore
from app.observe.figures_reader import FiguresReader
from app.observe.metrics import Metrics
from app.observe.request_log import RequestLog
from app.runtime.clock import monotonic
from app.streaming.kept.journal_counts import JournalCounts, commit_times
from app.streaming.live.live_room import LiveRoom
from app.streaming.loop_counts import loop_counts
from app.text.entry.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache


def create_app(
    engine: EngineClient,
    config: Config,
    text: TextFrontend,
    metrics: Metrics,
    timers: StreamTimers | None = None,
    grammars: GrammarCache | None = None,
    journal: JournalStore | None = None,
) -> Starlette:
    """Return the application that serves `engine` under `config`, with the model's `text` frontend.

    The caller starts, drains and closes the engine, and passes its step reports to `metrics.observe`. The engine reads
    the same `grammars`; without them answers cannot have any. Kept answers are recorded in `journal`.
    """
    learn_body_types(body_kinds())
    context = ApiContext(engine, config, text, timers or StreamTimers(), grammars or GrammarCache(), GrammarTrials)
    if journal is not None:
        kept_answers = AnswerJournal(context, journal, JOURNALED, metrics)
        context.journal = kept_answers
        context.drain.before_end = kept_answers.close
    metrics.include(lambda: JournalCounts() if context.journal is None else context.journal.counts)
    metrics.include_histogram(commit_times() if context.journal is None else context.journal.commit_s)
    metrics.include(loop_counts)
    metrics.include(lambda: context.streams.counts)
    metrics.include(lambda: context.kept.counts)
    metrics.include_grammars(context.grammars)
    checks = [partial(check_host, *allowed_hosts(config.server)), partial(check_key, context.keys)]
    page = Page()
    origins = allowed_origins(config.server)
    cors = [Middleware(Cors, origins=origins)] if origins else []
    figures = FiguresReader(engine, metrics, context.model_name, step_target_s(config.scheduler) * 1000 or None)
    if config.server.live_view != "off":
        context.live = LiveRoom(engine, figures.read_anew, shows_all=_shows_all(config.server))
    operations = _operations(metrics, figures)
    openapi = OpenApiPage(operations, has_keys=bool(config.server.api_key))
    operations.append(Operation("GET", "/openapi.json", openapi.show, "The OpenAPI document", None))
    routes: list[Route | WebSocketRoute] = [
        Route("/", page.file),
        Route("/static/{name:path}", page.file),
        Route("/preview", Preview().show),
        *_routes(operations),
        WebSocketRoute("/ws", websocket_endpoint),
        WebSocketRoute("/live", live_endpoint),
        WebSocketRoute(RESPONSES_PATH, responses_endpoint),
    ]
    log = RequestLog(route.path for route in routes)
    shapes = ErrorShapes((one.path, one.errors) for one in operations)
    metrics.include(lambda: log.counts)
    trace = Middleware(Trace, clock=monotonic, log=log, shapes=shapes)
    app = Starlette(
        routes=routes,
        middleware=[trace, Middleware(RequestTurns), *cors, Middleware(RequestChecks, checks=checks)],
        exception_handlers={QuireError: handle_quire_error, HTTPException: handle_http_exception},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # Starlette's redirect contains the scheme, which a proxy may have changed
    app.router.default = saying_where(app.router.not_found)
    app.state.context, app.state.metrics, app.state.request_log, app.state.error_shapes = context, metrics, log, shapes
    return app


def _operations(metrics: Metrics, figures: FiguresReader) -> list[Operation]:
    """Return the API's routes, and those that show the server's own state."""
    return [
        *OPERATIONS,
        Operation("GET", METRICS_PATH, MetricsPage(metrics.render).show, "Metrics of Prometheus", None),
        Operation(
            "GET",
            EVENTS_PATH,
            EngineEvents(figures.read).engine_events,
            "The figures of the engine, once in an interval",
            None,
            has_streams=True,
            query=("interval",),
        ),
    ]


def _routes(operations: Sequence[Operation]) -> Iterator[Route]:
    """Yield a route for each path, so that a wrong method is told all that are allowed."""
    handlers: dict[str, dict[str, Handler]] = {}
    for one in operations:
        handlers.setdefault(one.path, {})[one.method] = one.handler
    for path, by_method in handlers.items():
        one_handler, *others = by_method.values()
        yield _Route(path, partial(_handle, by_method) if others else one_handler, methods=[*by_method])


class _Route(Route):
    """A route that takes no path for the id of something which is another route, or belongs to another API."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        is_id = match is not Match.NONE and bool(self.param_convertors)
        return (Match.NONE, {}) if is_id and is_named(scope["path"]) else (match, found)


async def _handle(by_method: Mapping[str, Handler], request: Request) -> ASGIApp:
    return await by_method["GET" if request.method == "HEAD" else request.method](request)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Record answers while the server runs, and stop the threads that parse requests when it ends."""
    context: ApiContext = app.state.context
    if context.journal is not None:
        context.journal.start()
    try:
        yield
    finally:
        if context.journal is not None:
            await context.journal.close()
        context.close()


def _shows_all(server: ServerConfig) -> bool:
    """Return whether the live view shows whose all blocks are: by default, if there are no keys to tell whose."""
    return server.live_view == "all" or (server.live_view == "auto" and not server.api_key)
