"""The sampling options of the terminal commands."""

from __future__ import annotations

import argparse
from typing import Any

from app.commands.options import Parser

_OPTIONS: dict[str, tuple[type, str]] = {
    "max_tokens": (int, "Maximum number of output tokens; by default as many as fit."),
    "temperature": (float, "Sampling temperature; 0 is greedy. By default the model's own."),
    "top_p": (float, "Sample from the most likely tokens that together have this probability; 1 disables."),
    "top_k": (int, "Sample from this many most likely tokens; 0 disables."),
    "min_p": (float, "Exclude tokens below this fraction of the most likely token's probability; 0 disables."),
    "repetition_penalty": (float, "Above 1: tokens that occur in the prompt or the output become less likely."),
    "presence_penalty": (float, "Above 0: tokens that occur in the output become less likely."),
    "frequency_penalty": (float, "Above 0: tokens become less likely with each occurrence in the output."),
    "seed": (int, "Seed of the sampling, for repeatable outputs."),
}


SAMPLING_NAMES = frozenset(_OPTIONS)
"""Names taken by these options; `--seed` is the seed of the sampling here, not of random weights."""


def add_sampling(parser: Parser) -> None:
    """Add one option per sampling parameter, and `--stop`."""
    group = parser.add_argument_group("Sampling")
    for name, (kind, text) in _OPTIONS.items():
        option = "--" + name.replace("_", "-")
        group.add_argument(option, dest=f"sampling_{name}", type=kind, metavar="N", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="End the output before this text; repeatable.")


def read_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options, as fields of `SamplingParams` and of the API's request bodies."""
    given = {name: getattr(args, f"sampling_{name}") for name in _OPTIONS} | {"stop": args.stop}
    return {name: value for name, value in given.items() if value is not None}
