"""The options of the terminal commands that say how to sample."""

from __future__ import annotations

import argparse
from typing import Any

from app.commands.options import Parser

_OPTIONS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "Longest answer in tokens, default all that fits."),
    "temperature": (float, "0 takes the likeliest token; default the model's own."),
    "top_p": (float, "Keep the likeliest tokens that hold this share of the probability."),
    "top_k": (int, "Keep that many likeliest tokens; 0 keeps all."),
    "min_p": (float, "Drop tokens less likely than this share of the likeliest one."),
    "repetition_penalty": (float, "Above 1: tokens that have occurred become less likely."),
    "presence_penalty": (float, "Above 0: tokens that the answer has used become less likely."),
    "frequency_penalty": (float, "The same, once for each use."),
    "seed": (int, "Makes the draw repeatable."),
}


SAMPLING_NAMES = frozenset(_OPTIONS)
"""Names taken by these options; `--seed` is the draw's here, not that of random weights."""


def add_sampling(parser: Parser) -> None:
    """Add one option per sampling parameter, and `--stop`."""
    group = parser.add_argument_group("How to choose the next token")
    for name, (kind, text) in _OPTIONS.items():
        option = "--" + name.replace("_", "-")
        group.add_argument(option, dest=f"sampling_{name}", type=kind, metavar="N", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="End before this text; repeatable.")


def read_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was given, as fields of `SamplingParams` and of the API's bodies."""
    given = {name: getattr(args, f"sampling_{name}") for name in _OPTIONS} | {"stop": args.stop}
    return {name: value for name, value in given.items() if value is not None}
