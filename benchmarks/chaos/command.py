"""kill -9 at many points of many answers: every one must go on with the same bytes.

`make chaos`, or `python -m benchmarks chaos [--model smollm2] [--points N] [--seed N]`. A server with a journal answers
20 resumable requests: greedy and seeded, of one and two choices, with stop strings, characters of several tokens,
log-probabilities, schemas and calls of tools, over server-sent events, lines of JSON and quire.v1. It is killed when
its readers have received a number of tokens that the seed chooses, and started again on the same port; the readers come
back by themselves. What they were told altogether must be the answer of a server that nobody has disturbed.

The situations come in turn: answers that wait in the queue, prompts that are computed, first tokens, the middle, the
last step; a server that drains, one that restores the answers of another one that was killed, and one whose journal
cannot be written, because its disk is full. No child of a server may outlive it.

Exits 1 if an answer did not go on or differs, or a process was left.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.commands.measuring.machine import describe_run
from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from app.runtime.process_limits import raise_file_limit
from benchmarks.chaos.killing import Outcome, kill_at
from benchmarks.chaos.points import points
from benchmarks.figures import spread, write_json
from benchmarks.limits import conclude, judge
from benchmarks.resuming.asked import Asked, requests
from benchmarks.resuming.oracle import Oracle
from benchmarks.server_process import listening
from benchmarks.stopping import stopped_by_signals


def add_options(parser: Parser) -> None:
    """Add the model, how many points and answers there are, and where the figures go."""
    parser.add_argument("--model", default="guide", help="the model that is served, default guide")
    parser.add_argument("--points", type=int, default=50, help="how often a server is killed, default 50")
    parser.add_argument("--streams", type=int, default=20, help="answers of each server, default 20")
    parser.add_argument("--max-tokens", type=int, default=200, help="of a choice, default 200")
    parser.add_argument("--seed", type=int, default=1, help="chooses the points, default 1")
    parser.add_argument("--only", type=int, help="the number of one point, to repeat it")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, such as to chaos.json")


def run(args: argparse.Namespace) -> int:
    """Kill, print and judge."""
    if min(args.points, args.streams, args.max_tokens) < 1:
        raise ConfigurationError("--points, --streams and --max-tokens must be at least 1")
    raise_file_limit()
    asked = [*requests(args.streams, args.max_tokens)]
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as folder, stopped_by_signals():
        outcomes = asyncio.run(kill_all(args, asked, Path(folder)))
    first = [seconds for outcome in outcomes for seconds in outcome.first_tokens_s]
    faults = [f"point {each.point.number}, {fault}" for each in outcomes for fault in each.faults]
    verdicts = [judge("chaos", "answers that are not the undisturbed ones", len(faults))]
    print(f"{len(outcomes)} points, {len(outcomes) * len(asked)} answers, {len(faults)} faults")
    print(f"seconds from the kill to the first new token, median (lowest-highest): {spread(first)}")
    if args.out is not None:
        rows = [
            {
                **outcome.point._asdict(),
                "had_tokens": outcome.had_tokens,
                "num_continued": outcome.num_continued,
                "first_tokens_s": [round(seconds, 3) for seconds in outcome.first_tokens_s],
                "faults": outcome.faults,
            }
            for outcome in outcomes
        ]
        about = {"benchmark": "chaos", **describe_run(("torch",)), "model": args.model, "streams": args.streams}
        write_json(args.out, {**about, "points": rows})
    return conclude(verdicts, faults)


async def kill_all(args: argparse.Namespace, asked: Sequence[Asked], folder: Path) -> list[Outcome]:
    """Learn the undisturbed answers, and kill a server at each point."""
    oracle = Oracle()
    print(f"{len(asked)} answers of {args.model}, undisturbed", flush=True)
    with listening(args.model) as server:
        await server.wait_until_ready()
        await oracle.learn(asked, server.target)
    outcomes = []
    for point in points(args.points, args.seed, len(asked), oracle.num_tokens(asked)):
        if args.only in (None, point.number):
            outcome = await kill_at(point, args.model, asked, oracle, folder)
            print(f"point {point.number} of {args.points}, {outcome}", flush=True)
            for fault in outcome.faults:
                print(f"  {fault}", flush=True)
            outcomes.append(outcome)
    return outcomes
