"""The options of `quire bench serve`, and the load that they describe."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import fields
from functools import partial
from typing import Any

from app.commands.options import Parser
from app.config.nearest import nearest
from app.contract.errors import ConfigurationError
from app.loadgen.lengths import MODELS
from app.loadgen.load import PATHS, Load

VOCAB_SIZE = 1000
AT_LEAST_1 = ("num_requests", "max_concurrency", "input_len", "output_len", "vocab_size")
ABOVE_0 = ("burstiness", "duration", "timeout")
RATE_HELP = "Requests per second; inf (the default) sends all at once. Repeatable: one run per rate."


def add_arrivals(parser: Parser) -> None:
    """Add the options of arrival times and counts."""
    group, known = parser.add_argument_group("Arrivals"), Load()
    group.add_argument("--rate", type=float, action="append", metavar="R", help=RATE_HELP)
    add = partial(_add, group)
    shape = "Shape of the gamma distribution of the gaps: 1 is a Poisson process, lower is burstier, higher more even."
    add("--burstiness", "SHAPE", shape, known.burstiness)
    add("--max-concurrency", "N", "Maximum number of open requests; further ones wait.", kind=int)
    add("--num-requests", "N", "Number of requests of each run.", known.num_requests)
    duration = "Send requests for this many seconds instead; at rate inf it needs --max-concurrency."
    add("--duration", "SECONDS", duration, kind=float)
    add("--warm-up", "N", "Number of requests before the first run, which are not measured.", known.warm_up)
    cancel = "Fraction of requests that disconnect at a random point of the response."
    add("--cancel", "SHARE", cancel, known.cancel_share)
    add("--timeout", "SECONDS", "Give up a request after this many seconds.", known.timeout_s)
    add("--seed", "N", "Seed of arrivals, lengths, prompts and cancellations.", known.seed)


def add_requests(parser: Parser) -> None:
    """Add the options of the requests' contents."""
    group, known = parser.add_argument_group("Requests"), Load()
    add = partial(_add, group)
    add("--endpoint", "NAME", f"Route of the API: {' or '.join(PATHS)}.", known.endpoint)
    add("--model", "NAME", "Model name; by default the first one that the server lists.", kind=str)
    add("--input-len", "N", "Length of a prompt in random words, or in token ids.", known.input_len)
    add("--output-len", "N", "Maximum number of output tokens.", known.output_len)
    lengths = f"Vary both lengths as in a data set instead: {' or '.join(MODELS)}."
    add("--lengths", "NAME", lengths, kind=str)
    group.add_argument("--prompt-token-ids", action="store_true", help="Send prompts as token ids, not as text.")
    add("--vocab-size", "N", f"Upper bound of the random token ids; by default {VOCAB_SIZE:,}.", kind=int)
    group.add_argument("--ignore-eos", action="store_true", help="Generate outputs of the full length: ignore EOS.")
    add("--temperature", "T", "Sampling temperature; by default the server's.", kind=float)
    add("--extra-body", "JSON", "Further fields of each request, as a JSON object.", kind=str)
    key = "API key of the server; by default the first one in QUIRE_API_KEY, else OPENAI_API_KEY."
    add("--api-key", "KEY", key, kind=str)


def read_load(args: argparse.Namespace) -> Load:
    """Return the load that the options describe.

    Raises:
        ConfigurationError: a value is out of range, or options are incompatible.
    """
    _check_ranges(args)
    _check_names(args)
    _check_pairs(args)
    same = {field.name: getattr(args, field.name) for field in fields(Load) if hasattr(args, field.name)}
    others = {
        "model": args.model or "",
        "duration_s": args.duration,
        "cancel_share": args.cancel,
        "timeout_s": args.timeout,
        "vocab_size": (args.vocab_size or VOCAB_SIZE) if args.prompt_token_ids else None,
        "extra_body": _extra_body(args.extra_body or "{}"),
    }
    return Load(**same | others)


def _add(
    group: argparse._ArgumentGroup,
    option: str,
    metavar: str,
    text: str,
    default: object = None,
    kind: type | None = None,
) -> None:
    """Add an option of the default's type, or of `kind` where there is none."""
    if default is not None:
        text += f" Default {default:g}." if isinstance(default, float) else f" Default {default}."
    group.add_argument(option, metavar=metavar, help=text, type=kind or type(default), default=default)


def _check_ranges(args: argparse.Namespace) -> None:
    for name in AT_LEAST_1:
        if (value := getattr(args, name)) is not None and value < 1:
            raise ConfigurationError(f"{_option(name)} is {value}; it must be at least 1")
    for name in ABOVE_0:
        if (value := getattr(args, name)) is not None and not value > 0:
            raise ConfigurationError(f"{_option(name)} is {value:g}; it must be above 0")
    for rate in args.rate or ():
        if not rate > 0:
            raise ConfigurationError(f"--rate is {rate:g}; it must be above 0, or inf")
    if args.warm_up < 0:
        raise ConfigurationError(f"--warm-up is {args.warm_up}; it must be 0 or more")
    if not 0 <= args.cancel <= 1:
        raise ConfigurationError(f"--cancel is {args.cancel:g}; it must be a number between 0 and 1")
    if args.temperature is not None and not (args.temperature >= 0 and math.isfinite(args.temperature)):
        raise ConfigurationError(f"--temperature is {args.temperature:g}; it must be 0 or more")


def _check_names(args: argparse.Namespace) -> None:
    for name, known in (("endpoint", PATHS), ("lengths", MODELS)):
        if (value := getattr(args, name)) is not None and value not in known:
            allowed = ", ".join(known)
            raise ConfigurationError(f"--{name} is {value!r}{nearest(value, known)}; it must be one of {allowed}")


def _check_pairs(args: argparse.Namespace) -> None:
    if args.prompt_token_ids and args.endpoint == "chat":
        raise ConfigurationError(
            "the chat endpoint takes no token ids; use --endpoint completions, or leave --prompt-token-ids out"
        )
    if args.vocab_size is not None and not args.prompt_token_ids:
        raise ConfigurationError("--vocab-size needs --prompt-token-ids")
    if args.duration is None or args.max_concurrency is not None:
        return
    if math.isinf(args.duration) or any(map(math.isinf, args.rate or [math.inf])):
        raise ConfigurationError("--duration at rate inf needs a limit; give --max-concurrency, or a --rate")


def _extra_body(given: str) -> dict[str, Any]:
    try:
        found = json.loads(given)
    except ValueError as error:
        raise ConfigurationError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'--extra-body is {given}; it must be a JSON object, for example {{"top_k": 20}}')
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
