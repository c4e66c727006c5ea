"""What the costliest grammars cost others, where a search has made them.

`python -m benchmarks hostile [--languages schema,regex,gbnf,lark] [--requests N] [--seed N] [--model long]`. A small
generator writes schemas, regular expressions, GBNF and Lark at random; those that took the server longest, or most
memory, are changed, combined and sent again. Three clients send them, each request from another address, so that no
account's allowance stops them. Beside them the good client of `isolation` reads a stream, asks for `/livez`, and sends
new requests: a chat, a schema that no request has had, and an embedding.

Each language has a server of its own. Afterwards its memory is read until it is back, at most a minute; then SIGTERM
ends it while the costliest requests are sent again. The limits are those of `isolation`, against the same client with
nothing beside. Exits 1 when one is exceeded, the server ends by itself, or a request ends without a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from app.commands.options import Parser
from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from benchmarks.checkpoints import CHANGES, write_checkpoint
from benchmarks.figures import write_json
from benchmarks.hostile.outcomes import Outcomes
from benchmarks.hostile.search import Search, Tried
from benchmarks.hostile.sources import LANGUAGES
from benchmarks.isolation.attack_table import QUIET
from benchmarks.isolation.ending import EXIT_S, memory_back
from benchmarks.isolation.report import COLUMNS, figures_of, verdicts
from benchmarks.isolation.rounds import why
from benchmarks.isolation.row import FAILURES, Row, measure, measure_beside
from benchmarks.isolation.setups import KV_CACHE_BYTES
from benchmarks.limits import conclude, limits
from benchmarks.options import chosen
from benchmarks.server_process import ServerProcess, serving

QUIET_S = 6.0
DRAIN_S = 2
BESIDE_S = 0.5


class Result(NamedTuple):
    """The good client with nothing beside and beside the search, what was accepted, took longest, and may not be."""

    quiet: Row
    row: Row
    outcomes: Outcomes
    costliest: list[Tried]
    faults: list[str]

    def as_json(self) -> dict[str, object]:
        """Return it for `--out`."""
        return {
            "quiet": self.quiet._asdict(),
            "row": self.row._asdict(),
            "outcomes": self.outcomes._asdict(),
            "costliest": [tried._asdict() for tried in self.costliest],
            "faults": self.faults,
        }


def add_options(parser: Parser) -> None:
    """Add what is sent to which model, and where the figures go."""
    parser.add_argument("--languages", help=f"some of {','.join(LANGUAGES)}; default all")
    parser.add_argument("--requests", type=int, default=200, help="of each language, default 200")
    parser.add_argument("--seed", type=int, default=0, help="of the search, default 0")
    parser.add_argument("--model", choices=CHANGES, default="long", help="of isolation's models, default long")
    parser.add_argument("--out", type=Path, help="write the figures and the genes of the costliest requests as JSON")


def run(args: argparse.Namespace) -> int:
    """Search in each language, and print; 1 if a limit is missed."""
    found: dict[str, Result] = {}
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="quire-hostile-") as folder:
        model = write_checkpoint(args.model, Path(folder) / args.model)
        options = [str(model), "--load-format", "dummy", "--kv-cache-memory", str(KV_CACHE_BYTES)]
        for language in chosen(args.languages, list(LANGUAGES), "languages"):
            with serving(*options, "--drain-timeout", str(DRAIN_S)) as server:
                try:
                    found[language] = result = search(server, language, args.requests, args.seed)
                except FAILURES as error:
                    faults.append("; ".join([f"{language}: {why(server, error)}", *getattr(error, "__notes__", [])]))
                else:
                    print(f"{language}: {result.row}", file=sys.stderr, flush=True)
            if args.out is not None:  # after each one, so that a run that is ended early leaves what it has found
                write_json(args.out, {language: result.as_json() for language, result in found.items()})
    return report(found, faults)


def search(server: ServerProcess, language: str, num_requests: int, seed: int) -> Result:
    """Search in one language, and end the server.

    Raises:
        OSError, EOFError, RuntimeError, TimeoutError: the server has failed.
    """
    quiet, _ = asyncio.run(measure(server, 0, QUIET, QUIET_S))
    attacker = Search(server, language, num_requests, seed)
    row, growth = asyncio.run(measure_beside(server, nullcontext(attacker), 0.0))
    kept, back_s = memory_back(server, growth, 1e6 * limits("isolation")["memory kept after a minute"].value)
    exit_s = asyncio.run(_terminate_beside(server, attacker))
    row = row._replace(kept_bytes=kept, back_s=back_s, exit_s=max(0.0, exit_s - DRAIN_S))
    return Result(quiet, row, attacker.outcomes(), list(attacker.costliest()), attacker.faults)


async def _terminate_beside(server: ServerProcess, attacker: Search) -> float:
    """Return how long SIGTERM takes while the costliest requests are sent."""
    attacking = asyncio.create_task(attacker.repeat_costliest())
    await asyncio.sleep(BESIDE_S)
    exit_s = await asyncio.to_thread(server.terminate, EXIT_S)
    await attacking
    return exit_s


def report(found: Mapping[str, Result], faults: list[str]) -> int:
    """Print the figures of each language, and what exceeds the limits; return the exit code."""
    held, rows = [], []
    for language, result in found.items():
        figures = figures_of([result.row._asdict()])
        held += verdicts(figures, figures_of([result.quiet._asdict()]), language)
        faults = [*faults, *(f"{language}: {fault}" for fault in result.faults)]
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(result.row.answers.items()))
        rows.append([language, *(number(figures[each.field] / each.unit) for each in COLUMNS), answers])
    heads = ["language", *(each.head.replace("`", "") for each in COLUMNS), "answers"]
    print("\n".join(table(own_terminal(), heads, rows)))
    for language, result in found.items():
        print(f"{language}: {result.outcomes}")
    return conclude(held, faults)
