"""`quire top`: the figures of a running server in the terminal, as `GET /v1/engine/events` sends them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from rich.console import Console

from app.commands.answers.server_connection import read_key
from app.commands.options import Parser
from app.commands.watching.figures_screen import FiguresScreen, FullScreen, LinesScreen
from app.commands.watching.figures_stream import FiguresStream
from app.commands.watching.quit_key import quit_key
from app.config.base_url import read_base_url
from app.contract.engine_figures import MAX_INTERVAL_S, MIN_INTERVAL_S
from app.contract.errors import ConfigurationError
from app.streaming.background import Background

_URL = "http://127.0.0.1:8000"


def add_options(parser: Parser) -> None:
    """Add the server, its key and the interval."""
    parser.usage = "quire top [URL] [OPTIONS]"
    parser.add_argument("server", nargs="?", metavar="URL", help=f"URL of a running server (default {_URL}).")
    parser.add_argument("--url", metavar="URL", help="Same as URL.")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key of the server; by default the first one in QUIRE_API_KEY, else OPENAI_API_KEY.",
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=1.0, help="Seconds from figures to figures (default 1)."
    )


def run(args: argparse.Namespace) -> int:
    """Show figures until the user quits with `q` or Ctrl-C; without a terminal, one line for each until Ctrl-C."""
    if None not in (args.server, args.url):
        raise ConfigurationError("the server is given twice, by URL and by --url; leave one out")
    given = args.url if args.server is None else args.server
    url = read_base_url(_URL if given is None else given, "URL" if args.url is None else "--url")
    if not MIN_INTERVAL_S <= args.interval <= MAX_INTERVAL_S:
        raise ConfigurationError(
            f"--interval is {args.interval:g}; it must be a number of seconds from {MIN_INTERVAL_S:g} to "
            f"{MAX_INTERVAL_S:g}."
        )
    stream = FiguresStream(url, read_key(args.api_key), args.interval)
    if sys.stdin.isatty() and sys.stdout.isatty():
        with FullScreen(str(url), Console()) as screen:
            asyncio.run(_show_until_quit(stream, screen))
        return 0
    lines = LinesScreen(lambda line: print(line, flush=True))
    with contextlib.closing(stream):
        while True:
            lines.show(stream.read())


async def _show_until_quit(stream: FiguresStream, screen: FiguresScreen) -> None:
    """Show the figures, which are read on a thread, until `q` is typed."""
    threads = Background("figures", num_threads=1)
    try:
        with quit_key(sys.stdin.fileno()) as pressed:
            quitting = asyncio.ensure_future(pressed.wait())
            while not quitting.done():
                reading = asyncio.ensure_future(threads.run(stream.read))
                await asyncio.wait([quitting, reading], return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    screen.show(reading.result())
                else:
                    reading.cancel()
    finally:
        stream.close()
        threads.close()
