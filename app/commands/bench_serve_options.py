"""The options of `quire bench serve`, and the load they ask for."""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from typing import Any

from app.commands.options import Parser
from app.config.settings import nearest
from app.contract.errors import ConfigurationError
from app.loadgen.lengths import MODELS
from app.loadgen.load import PATHS, Load

VOCAB_SIZE = 1000
AT_LEAST_1 = ("num_requests", "max_concurrency", "input_len", "output_len", "vocab_size")
ABOVE_0 = ("burstiness", "duration", "timeout")
RATE_HELP = "Requests per second; inf, the default, is all at once. Repeatable: a run for each."


def add_arrivals(parser: Parser) -> None:
    """Add when requests are sent, and how many."""
    group, known = parser.add_argument_group("when requests are sent"), Load()
    group.add_argument("--rate", type=float, action="append", metavar="R", help=RATE_HELP)
    add = partial(_add, group)
    add("--burstiness", "SHAPE", "1 is a Poisson process; less comes in bursts, more evenly.", known.burstiness)
    add("--max-concurrency", "N", "Most requests open at once; the next waits for a place.", kind=int)
    add("--num-requests", "N", "Requests of each run.", known.num_requests)
    add("--duration", "SECONDS", "Send for so long instead; at rate inf it needs --max-concurrency.", kind=float)
    add("--warm-up", "N", "Requests before the first run, which do not count.", known.warm_up)
    add("--cancel", "SHARE", "Share of requests that hang up at a random point of the answer.", known.cancel_share)
    add("--timeout", "SECONDS", "Longest wait for the end of an answer.", known.timeout_s)
    add("--seed", "N", "Of arrivals, lengths, prompts and cancellations.", known.seed)


def add_requests(parser: Parser) -> None:
    """Add what is asked."""
    group, known = parser.add_argument_group("what is asked"), Load()
    add = partial(_add, group)
    add("--endpoint", "NAME", f"{' or '.join(PATHS)}.", known.endpoint)
    add("--model", "NAME", "The model; by default the first that the server names.", kind=str)
    add("--input-len", "N", "Random words, or token ids, of a prompt.", known.input_len)
    add("--output-len", "N", "Most new tokens of an answer.", known.output_len)
    add("--lengths", "NAME", f"Lengths that vary as in a data set instead: {' or '.join(MODELS)}.", kind=str)
    group.add_argument("--prompt-token-ids", action="store_true", help="Send prompts as token ids, not as text.")
    add("--vocab-size", "N", f"Token ids are below it; by default {VOCAB_SIZE:,}.", kind=int)
    group.add_argument("--ignore-eos", action="store_true", help="Ask for answers of the full length.")
    add("--temperature", "T", "By default the server's.", kind=float)
    add("--extra-body", "JSON", "Further fields of each request, as a JSON object.", kind=str)
    add("--api-key", "KEY", "Key of the server; by default the variable OPENAI_API_KEY.", kind=str)


def read_load(args: argparse.Namespace) -> Load:
    """Return the load that the options ask for.

    Raises:
        ConfigurationError: a value that is out of range, or options that do not go together.
    """
    _check_ranges(args)
    _check_names(args)
    _check_pairs(args)
    return Load(
        endpoint=args.endpoint,
        model=args.model or "",
        num_requests=args.num_requests,
        duration_s=args.duration,
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        input_len=args.input_len,
        output_len=args.output_len,
        lengths=args.lengths,
        vocab_size=(args.vocab_size or VOCAB_SIZE) if args.prompt_token_ids else None,
        temperature=args.temperature,
        ignore_eos=args.ignore_eos,
        extra_body=_extra_body(args.extra_body or "{}"),
        warm_up=args.warm_up,
        cancel_share=args.cancel,
        timeout_s=args.timeout,
        seed=args.seed,
    )


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
        raise ConfigurationError(f"--cancel is {args.cancel:g}; it is a share, from 0 to 1")
    if args.temperature is not None and not (args.temperature >= 0 and math.isfinite(args.temperature)):
        raise ConfigurationError(f"--temperature is {args.temperature:g}; it must be 0 or more")


def _check_names(args: argparse.Namespace) -> None:
    for name, known in (("endpoint", PATHS), ("lengths", MODELS)):
        if (value := getattr(args, name)) is not None and value not in known:
            allowed = ", ".join(known)
            raise ConfigurationError(f"--{name}: unknown {value!r}{nearest(value, known)}; known: {allowed}")


def _check_pairs(args: argparse.Namespace) -> None:
    if args.prompt_token_ids and args.endpoint == "chat":
        raise ConfigurationError("chat takes no token ids; use --endpoint completions, or leave --prompt-token-ids out")
    if args.vocab_size is not None and not args.prompt_token_ids:
        raise ConfigurationError("--vocab-size is for --prompt-token-ids")
    if args.duration is None or args.max_concurrency is not None:
        return
    if math.isinf(args.duration) or any(map(math.isinf, args.rate or [math.inf])):
        raise ConfigurationError("--duration at rate inf would send without end; give --max-concurrency, or a --rate")


def _extra_body(given: str) -> dict[str, Any]:
    try:
        found = json.loads(given)
    except ValueError as error:
        raise ConfigurationError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'--extra-body is {given}; it must be an object, as in {{"top_k": 20}}')
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
