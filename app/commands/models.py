"""`quire models`: the models on this machine, whether they can be served, and how fast they can be at best."""

from __future__ import annotations

import argparse
import datetime
import json

from app.commands.best_speed import BestSpeed, best_speed
from app.commands.budget import size
from app.commands.options import Parser
from app.commands.stored_models import StoredModel, stored_models
from app.engine.execute.memory_plan import free_memory
from app.observe.download_progress import size_text
from app.observe.terminal import own_terminal

_HEAD = ("name", "format", "size", "last used", "runs")


def add_options(parser: Parser) -> None:
    """Add the format of the output."""
    parser.usage = "quire models [OPTIONS]\n       quire models rm NAME [OPTIONS]"
    parser.add_argument("--json", action="store_true", help="Print the models as JSON; sizes in bytes.")


def run(args: argparse.Namespace) -> int:
    """Print one line for each model."""
    free = free_memory()
    found = [(model, best_speed(model.active_bytes)) for model in stored_models()]
    if args.json:
        print(json.dumps([_figures(model, speed, free) for model, speed in found], indent=2))
        return 0
    rows = [_HEAD, *(_row(model, speed, free) for model, speed in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    terminal = own_terminal()
    for *cells, last in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(terminal.text(f"{line}  {last}"))
    return 0


def _row(model: StoredModel, speed: BestSpeed | None, free: int) -> tuple[str, ...]:
    used = "-" if model.last_used is None else datetime.date.fromtimestamp(model.last_used).isoformat()
    runs = "yes" if speed is None else f"yes, at best {speed}"
    if model.reason is not None:
        runs = f"no: {model.reason}"
    elif model.weight_bytes > free:
        runs = f"not now: the weights take {size(model.weight_bytes)}; {size(free)} are free"
    return model.name, model.format, size_text(model.num_bytes), used, runs


def _figures(model: StoredModel, speed: BestSpeed | None, free: int) -> dict[str, object]:
    used, is_served = model.last_used, model.reason is None
    return {
        "name": model.name,
        "format": model.format,
        "bytes": model.num_bytes,
        "last_used": None if used is None else datetime.datetime.fromtimestamp(used, datetime.UTC).isoformat(),
        "runs": is_served,
        "reason": model.reason,
        "weight_bytes": model.weight_bytes if is_served else None,
        "fits": model.weight_bytes <= free if is_served else None,
        "max_tokens_per_second": speed and speed.tokens_per_second,
        "revision": model.revision or None,
        "path": str(model.path),
    }
