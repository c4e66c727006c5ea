"""`quire serve [MODEL]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.commands.options import Parser, add_settings, add_vllm_options, read_config
from app.config.vllm_options import variables_note
from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.runtime.gc_tuning import paused_gc
from app.runtime.start_timings import StartTimings, process_age


def add_options(parser: Parser) -> None:
    """Add the model and every setting."""
    parser.usage = "quire serve [MODEL] [OPTIONS]"
    parser.add_argument("served", nargs="?", metavar="MODEL", help="Same as --model.")
    add_settings(parser, "model", "sampling", "cache", "scheduler", "server")
    add_vllm_options(parser)
    parser.epilog = "The options of `vllm serve` are accepted, too; docs/reference/vllm.md says what becomes of each."


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends the process."""
    timings = StartTimings(process_age())
    with _startup_signals(), paused_gc():
        notes = [note] if (note := variables_note(os.environ)) else []
        config = read_config(args, model=args.served, note=notes.append)
        timings.end("command_line")
        # Imported after the settings were checked: a mistyped option is reported without delay.
        from app.server.run import serve

        timings.end("import_server")
        writer = LogWriter()
        console = Console(writer.stream(sys.stdout), is_quiet=config.server.quiet)
        try:
            serve(config, console, writer, timings=timings, notes=notes)
        finally:
            writer.flush()  # the line of an error, which is written without it, comes last
    return 0


@contextmanager
def _startup_signals() -> Iterator[None]:
    """Ignore SIGHUP, and end the process with exit code 0 on SIGTERM until the server listens with its own handler."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    termination = signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGTERM, termination)
