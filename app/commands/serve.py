"""`quire serve [MODEL]`."""

from __future__ import annotations

import argparse
import sys

from app.commands.options import Parser, add_settings, read_config
from app.garbage import starting
from app.observe.console import Console
from app.timings import StartTimings, process_age


def add_options(parser: Parser) -> None:
    """Add the model and every setting."""
    parser.usage = "quire serve [MODEL] [OPTIONS]"
    parser.add_argument("served", nargs="?", metavar="MODEL", help="Same as --model.")
    add_settings(parser, "model", "cache", "scheduler", "server")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    timings = StartTimings(process_age())
    config = read_config(args, model=args.served)
    timings.end("Python, the command line")
    with starting():
        # Imported after the settings are known to be good: a mistyped option is answered at once.
        from app.server.run import serve

        timings.end("import the server")
        serve(config, Console(sys.stdout, is_quiet=config.server.quiet), timings=timings)
    return 0
