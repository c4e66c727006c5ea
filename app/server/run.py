"""`quire serve`: builds the server from a checked configuration, and runs it to the end of the process."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import uvloop  # noqa: F401  # uvicorn would load it later, and wait for torch's libraries (see begin_preload)

from app import __version__
from app.api.app import create_app
from app.api.http.byte_shares import ByteShares
from app.api.http.error_shape import ErrorShapes
from app.checkpoint.names import served_name
from app.config.settings import Config, ServerConfig
from app.contract.engine_status import ModelInfo, StepReport
from app.contract.errors import ConfigurationError, EngineFailed, error_line
from app.contract.events import TokenDelta
from app.engine.kv_disk.block_folder import BlockFolder, FolderLocked
from app.engine.kv_disk.disk_store import KVDisk
from app.engine.kv_disk.kv_disk_counts import KVDiskCounts
from app.engine.prefix_file import read_prefixes
from app.engine.preload import begin_preload
from app.engine.thread import EngineThread
from app.journal.journal_file import JournalLocked
from app.journal.store import JournalStore
from app.observe.console import Console
from app.observe.log_output import configure_logging
from app.observe.log_writer import LogWriter
from app.observe.metrics import Metrics
from app.observe.request_log import RequestLog
from app.runtime.clock import monotonic
from app.runtime.process_limits import raise_file_limit
from app.runtime.start_timings import StartTimings, process_age
from app.server.guard import ConnectionLimits, Guard
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import SHUTDOWN_S, Server
from app.server.process_end import ProcessEnd
from app.server.read_turns import ReadTurns
from app.server.sockets import BACKLOG, listen, unacknowledged_timeout_s, urls_of
from app.server.watchdog import EXIT_ENGINE_FAILED, Watchdog
from app.server.websocket_protocol import WebSocketProtocol
from app.streaming.async_engine import AsyncEngine
from app.streaming.drain import Drain
from app.streaming.fetching_port import FetchingPort
from app.text.entry.frontend import TextFrontend
from app.text.entry.opened_model import OpenedModel
from app.text.grammar.cache import GrammarCache

Opened = TypeVar("Opened")
# How long the event loop or the engine thread may keep the interpreter from the other (Python's default: 5 ms).
SWITCH_INTERVAL_S = 0.0005
# How long a start waits for the journal, or the prefix cache, of a process that ends.
LOCK_WAIT_S = 5.0
# Interval of WebSocket pings.
PING_S = 20


def serve(
    config: Config,
    console: Console,
    writer: LogWriter,
    *,
    timings: StartTimings | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Serve until a signal ends the process, with exit code 0, or a failure with its code. Main thread only.

    Messages go to `console`, whose stream should be one of `writer`; the log, and all that is printed to stderr, goes
    through `writer`, too. `timings` contains the phases so far; `notes` are logged as warnings.

    Raises:
        ModelRefused: the model's folder cannot be served.
        ConfigurationError: a prefix cannot be pinned.
        CannotStart: the port, the journal or the prefix cache on disk is in use.
    """
    timings = timings or StartTimings(process_age())
    quiet = Console(sys.stderr, is_quiet=config.server.quiet)
    model = OpenedModel.open(config.model, quiet, begin_preload)  # not for a refused model, which needs no torch
    read_prefixes(config.cache, model.text)
    timings.end("open_model")
    level = logging.WARNING if config.server.quiet else logging.INFO
    configure_logging(sys.stderr, writer, config.server.log_format, level=level, before_write=console.clear_status)
    raise_file_limit()
    with contextlib.redirect_stderr(writer.stream(sys.stderr)):
        for note in notes:
            logging.getLogger("quire").warning(note)
        listener = listen(config.server.host, config.server.port, config.server)
        if model.text.chat_template is not None:
            logging.getLogger("quire").info("answer format: %s", model.text.answers)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        grammars = GrammarCache(is_served=True)
        kv_disk = open_kv_disk(config.server)
        thread = EngineThread(config, model=model, grammars=grammars, timings=timings, kv_disk=kv_disk)
        urls = urls_of(listener)
        journal = open_journal(config.server.journal)
        server = make_server(config, thread, model.text, console, writer, urls, timings, grammars, journal, kv_disk)
        del model  # its headers can be large; the engine drops them too, once it is built
        server.run(sockets=[listener])
        server.process_end.finish(_report_outcome(server, thread))


def open_journal(path: str | None) -> JournalStore | None:
    """Open the journal at `path`, if there is one; wait a while for a process that ends and still has it.

    Raises:
        ConfigurationError, CannotStart: see `JournalStore`.
    """
    if path is None:
        return None
    store = _when_unlocked(partial(JournalStore, state_path("journal", path)))
    log = logging.getLogger("quire.journal")
    if store.damaged is not None:
        log.warning("The journal was damaged. It is now %s, and a new one was begun.", store.damaged)
    answers = "1 answer" if store.num_stored == 1 else f"{store.num_stored} answers"
    log.info("journal: %s, %s of earlier processes", path, answers)
    return store


def open_kv_disk(settings: ServerConfig) -> KVDisk | None:
    """Open the folder of the prefix cache, if there is one; wait a while for a process that ends and still has it.

    Raises:
        ConfigurationError, CannotStart: see `BlockFolder`.
    """
    if settings.kv_disk is None:
        return None
    path = state_path("kv_disk", settings.kv_disk)
    folder = _when_unlocked(partial(BlockFolder, path, settings.kv_disk_space))
    logging.getLogger("quire.kv_disk").info(
        "KV cache on disk: %s, %.0f of %.0f MiB", path, folder.num_bytes / 2**20, settings.kv_disk_space / 2**20
    )
    return KVDisk(folder)


def state_path(setting: str, path: str) -> Path:
    """Return the path that a setting names, with the home folder for `~`.

    Raises:
        ConfigurationError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{setting} is {path}, but there is no such home folder.", param=setting) from None


def _when_unlocked(open_it: Callable[[], Opened]) -> Opened:
    limit = monotonic() + LOCK_WAIT_S
    while True:
        try:
            return open_it()
        except (JournalLocked, FolderLocked):
            if monotonic() > limit:
                raise
            time.sleep(0.1)


def _report_outcome(server: Server, thread: EngineThread) -> int:
    """Return the exit code of a server that has ended; a failure is a line on stderr, as of all commands."""
    if server.watchdog.has_fired:  # and has reported why
        return EXIT_ENGINE_FAILED
    if not server.has_failed:
        return 0
    failure = thread.failure or EngineFailed(server.health().message)
    sys.stderr.write(f"{error_line('quire', failure.message)}\n")
    return failure.exit_code


def make_server(
    config: Config,
    thread: EngineThread,
    text: TextFrontend,
    console: Console,
    writer: LogWriter,
    urls: Sequence[str],
    timings: StartTimings,
    grammars: GrammarCache | None = None,
    journal: JournalStore | None = None,
    kv_disk: KVDisk | None = None,
) -> Server:
    """Return the server of `config` for an engine thread that has not started; nothing runs yet.

    The engine of the thread reads the same `grammars`, and has the same `kv_disk`. Kept answers are recorded in
    `journal`.
    """
    metrics = Metrics(served_name(config.model), config.cache)
    metrics.include(lambda: writer.counts)
    metrics.include(lambda: timings.counts)
    observe = FirstToken(metrics.observe, timings, console.print_line) if config.server.timings else metrics.observe
    metrics.include(KVDiskCounts if kv_disk is None else kv_disk.current_counts)
    engine = AsyncEngine(thread if kv_disk is None else FetchingPort(thread, kv_disk), config, observe)
    metrics.include(lambda: engine.counts)
    app = create_app(engine, config, text, metrics, grammars=grammars, journal=journal)
    drain: Drain = app.state.context.drain
    return Server(
        uvicorn_config(
            app, config, log=app.state.request_log, shapes=app.state.error_shapes, received=app.state.context.received
        ),
        engine,
        process_end=ProcessEnd(
            console,
            writer,
            config.server.drain_timeout,
            num_open=lambda: drain.num_open,
            exit_code=lambda: 0 if thread.failure is None else thread.failure.exit_code,
        ),
        watchdog=Watchdog(
            thread, config.server.watchdog_timeout, stats=engine.stats, observe_lag=metrics.steps.loop_lag_s.observe
        ),
        drain=drain,
        drain_timeout_s=config.server.drain_timeout,
        console=console,
        listening_line=f"Quire {__version__} on {' and '.join(urls)} (loading {config.model.model})",
        ready_line=lambda: ready_line(engine.model_info(), urls),
        timings=timings,
        prints_timings=config.server.timings,
    )


@dataclass(slots=True)
class FirstToken:
    """Passes all step reports to `observe`, and announces the first token of the first request. Loop only."""

    observe: Callable[[StepReport], None]
    timings: StartTimings
    announce: Callable[[str], None]
    _began: float | None = None  # when the first prefill step began
    _is_announced: bool = False

    def __call__(self, report: StepReport) -> None:
        """Handle one step report."""
        self.observe(report)
        if self._is_announced:
            return
        now = self.timings.now()
        if self._began is None and report.num_prefill_tokens:
            self._began = now - report.duration_s
        if self._began is not None and any(isinstance(event, TokenDelta) for event in report.events):
            self._is_announced = True
            self.announce(
                f"First token: {now:.2f} s after the start of the process, {now - self._began:.3f} s after the start "
                "of its prefill."
            )


def uvicorn_config(
    app: Callable[..., object],
    config: Config,
    limits: ConnectionLimits | None = None,
    log: RequestLog | None = None,
    shapes: ErrorShapes | None = None,
    received: ByteShares | None = None,
) -> uvicorn.Config:
    """Return uvicorn's settings for `app`: our protocols and limits, without uvicorn's own log lines and headers.

    `log`, `shapes`, of errors, and `received` are those of the application.
    """
    guard = Guard(
        limits or ConnectionLimits(),
        config.server.max_connections_per_ip,
        log=log or RequestLog(),
        shapes=shapes or ErrorShapes(),
    )
    # uvicorn calls `http` and `ws` like classes; all protocols of a server share one guard.
    http: Any = partial(HttpProtocol, guard=guard)
    received = received or ByteShares(config.server.max_request_bytes)
    ws: Any = partial(WebSocketProtocol, guard=guard, turns=ReadTurns(), received=received)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        ws=ws,
        ws_max_size=config.server.max_request_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        # A client that has stopped reading answers no pings either; the stall timeout must come first.
        ws_ping_timeout=unacknowledged_timeout_s(config.server.stall_timeout) or None,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=SHUTDOWN_S,
        backlog=BACKLOG,
        server_header=False,
        proxy_headers=False,
        access_log=False,
        log_config=None,
        log_level="warning",
    )


def ready_line(model_info: ModelInfo, urls: Sequence[str]) -> str:
    """Return the ready line with model, limits and URLs.

    Lines with the uses of a GPU's memory and with the sampling defaults come before it.
    """
    name = f"{model_info.name} (text only)" if model_info.is_text_only else model_info.name
    line = (
        f"Ready: {name}, context {model_info.max_model_len:,} tokens, "
        f"KV cache {model_info.kv_capacity_tokens:,} tokens, {process_age():.1f} s after the start, "
        f"on {' and '.join(urls)}"
    )
    defaults = str(model_info.defaults)
    rows = [*model_info.memory, *([f"sampling defaults: {defaults}"] if defaults else [])]
    return "\n".join([*(f"  {row}" for row in rows), line])
