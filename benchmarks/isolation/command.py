"""What one client costs the others: a normal client while another one does the costliest thing of each kind.

`python -m benchmarks isolation [--models long,wide] [--only NAME,...] [--rounds N] [--seconds S]`. A normal client
reads one stream, requests `/livez` fifty times a second, and sends new requests, one at a time: a chat, a schema that
no request has had, and an embedding in turn, whose answers are checked. Meanwhile a process of the lowest priority
attacks (the table is `attack_table.py`); in the row `idle` it does nothing. It has another address than the normal
client, in each row another one, in some rows another key or none, and in one row an address of one IPv6 /64 for each
connection.

The rows of a round share a server; in the last round each row has a server of its own. Its memory (that of its children
too, its KV cache excepted) is read until it is back, at most a minute, and then SIGTERM ends it.

Limits are in limits.toml, for the medians of the rounds: the p99 of the times between tokens depends on the quiet one;
also bounded are the p99 of `/livez`, the first tokens of the new requests, memory afterwards, and the end. The longest
gap between tokens, the longest answer of `/livez` and memory during the attack are those of the worst round. A server
that ends by itself fails its row, and the next row has a new one; so does an attack that measures nothing in a round,
since it was answered with 429 alone, or watched without reading and missed no picture. Exits 1 when a row exceeds a
limit or fails.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.commands.options import Parser
from benchmarks.checkpoints import CHANGES, write_checkpoint
from benchmarks.figures import write_json
from benchmarks.isolation.attack import Attack
from benchmarks.isolation.attack_table import ATTACKS, QUIET
from benchmarks.isolation.report import Found, report
from benchmarks.isolation.rounds import Model, one_round
from benchmarks.isolation.setups import IPV6, loopback_network
from benchmarks.options import chosen

MODELS = ("long", "wide")


def add_options(parser: Parser) -> None:
    """Add what is measured, how often, for how long, and where the figures go."""
    parser.add_argument("--models", help="long, wide or both (default)")
    parser.add_argument("--only", help="names of attacks; default all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each model, default 3")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each row, default 6")
    parser.add_argument("--out", type=Path, help="write every value as JSON, such as to isolation.json")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if a limit is missed."""
    names = [QUIET, *(name for name in chosen(args.only, list(ATTACKS), "only") if name != QUIET)]
    models = chosen(args.models, list(MODELS), "models")
    with tempfile.TemporaryDirectory(prefix="quire-isolation-") as folder, loopback_network() as why_not:
        left_out = {name: why for name in names if (why := obstacle(ATTACKS[name], why_not))}
        for name, why in left_out.items():
            print(f"{name} is left out, because {why}")
        names = [name for name in names if name not in left_out]
        paths = {name: write_checkpoint(name, Path(folder) / name) for name in CHANGES}
        measured = {name: Model(paths[name], CHANGES[name]["max_position_embeddings"]) for name in models}
        keep = partial(write_json, args.out) if args.out is not None else lambda found: None
        found = all_rounds(measured, names, args.rounds, args.seconds, keep)
    return report(found)


def obstacle(attack: Attack, no_addresses: str) -> str:
    """Say why this machine cannot run a row, such as because of `no_addresses` for IPv6; else ""."""
    if attack.setup is IPV6 and no_addresses:
        return f"this machine's loopback gets no further addresses: {no_addresses}"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < attack.num_open:
        return f"a process may open only {hard} files here, and it needs {attack.num_open}; raise that with ulimit -Hn"
    return ""


def all_rounds(
    models: dict[str, Model], names: list[str], num_rounds: int, seconds: float, keep: Callable[[Found], None]
) -> Found:
    """Measure all rows of all models in all rounds; what is found so far is kept after each, which takes long."""
    found: dict[str, dict[str, list[dict[str, object] | str]]] = {}
    for name, model in models.items():
        found[name] = {row_name: [] for row_name in names}
        for turn in range(num_rounds):
            say = _saying(f"{name}, round {turn + 1} of {num_rounds}")
            for row_name, row in one_round(model, names, seconds, turn == num_rounds - 1, say).items():
                found[name][row_name].append(row if isinstance(row, str) else row._asdict())
            keep(found)
    return found


def _saying(where: str) -> Callable[[str], None]:
    begin = "\r\033[K" if sys.stderr.isatty() else ""
    return lambda name: print(f"{begin}{where}: {name}", end="", file=sys.stderr, flush=True)
