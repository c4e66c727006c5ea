"""`quire pull NAME`: downloads a model of the hub, or `smollm2`."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import hub_name, resolve
from app.commands.options import Parser
from app.commands.stored_models import inspected
from app.config.settings import make_config
from app.observe.console import Console


def add_options(parser: Parser) -> None:
    """Add the model's name and revision."""
    parser.usage = "quire pull NAME [OPTIONS]"
    parser.add_argument(
        "name", metavar="NAME", help="`owner/name`, `owner/name:QUANT`, `owner/name/file.gguf` or `smollm2`."
    )
    parser.add_argument("--revision", metavar="TEXT", help="Branch, tag or commit; by default `main`.")


def run(args: argparse.Namespace) -> int:
    """Download what is not there yet; say where it is, and whether it can be served.

    The exit code is 2, and nothing is downloaded, if the headers alone say that it cannot.
    """
    console = Console(sys.stdout)
    name = hub_name(args.name)
    try:
        if name is None:
            path = resolve(args.name, args.revision, console)
        else:
            from app.checkpoint.hub.hub_models import pull_or_find  # slow to import
            from app.text.entry.opened_model import check_headers

            settings = make_config({"model": args.name}).model
            path = pull_or_find(name, args.revision, console, partial(check_headers, settings))
    except KeyboardInterrupt:
        console.print_line("Interrupted. What has arrived is kept; the same command continues.")
        raise
    console.print_line(f"{args.name} is in {path}" if args.name != EMBEDDED else f"{EMBEDDED} is a part of Quire.")
    found = inspected(make_config({"model": str(path)}))
    is_refused = isinstance(found, str)
    console.print_line(f"It cannot be served: {found}" if is_refused else f"Serve it with `quire serve {args.name}`.")
    return 0
