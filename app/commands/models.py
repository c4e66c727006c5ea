"""`quire models`: the models on this machine, and whether they can be served."""

from __future__ import annotations

import argparse
import datetime
import json

from app.commands.options import Parser
from app.commands.stored_models import StoredModel, stored_models
from app.observe.download_progress import size_text
from app.observe.terminal import own_terminal

_HEAD = ("name", "format", "size", "last used", "runs")


def add_options(parser: Parser) -> None:
    """Add the format of the output."""
    parser.usage = "quire models [OPTIONS]\n       quire models rm NAME [OPTIONS]"
    parser.add_argument("--json", action="store_true", help="Print the models as JSON; sizes in bytes.")


def run(args: argparse.Namespace) -> int:
    """Print one line for each model."""
    found = list(stored_models())
    if args.json:
        print(json.dumps([_figures(model) for model in found], indent=2))
        return 0
    rows = [_HEAD, *(_row(model) for model in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    terminal = own_terminal()
    for *cells, last in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(terminal.text(f"{line}  {last}"))
    return 0


def _row(model: StoredModel) -> tuple[str, ...]:
    used = "-" if model.last_used is None else datetime.date.fromtimestamp(model.last_used).isoformat()
    runs = "yes" if model.reason is None else f"no: {model.reason}"
    return model.name, model.format, size_text(model.num_bytes), used, runs


def _figures(model: StoredModel) -> dict[str, object]:
    used = model.last_used
    return {
        "name": model.name,
        "format": model.format,
        "bytes": model.num_bytes,
        "last_used": None if used is None else datetime.datetime.fromtimestamp(used, datetime.UTC).isoformat(),
        "runs": model.reason is None,
        "reason": model.reason,
        "revision": model.revision or None,
        "path": str(model.path),
    }
