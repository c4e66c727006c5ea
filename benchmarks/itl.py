"""Time between tokens while long prompts arrive: 8 clients are answered, then 4 prompts of maximum length come.

`python -m benchmarks itl [--repeat N] [--shape guide|s135]` writes `results/itl.json` and `results/itl.svg`, and exits
1 when the 99th percentile with the step-time budget (`--itl-target`, at a server's default) is more than twice the
target, or twice what decodes alone take if that is more. Two engines in one process take turns, one with the budget and
one without; the engine alone, without a server. The cost is reported too: the time to the first token of the long
prompts.

Two models: `guide` with its full context, and the s135 shape (random weights) with half of its own, whose decodes
alone take longer than the target on a small CPU.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.config.step_target import ITL_TARGET_S
from app.contract.events import TokenDelta
from app.engine.engine import Engine
from app.loadgen import plots
from app.loadgen.figures import percentile
from app.runtime.clock import monotonic
from benchmarks.engine_load import add, greedy, load_model
from benchmarks.figures import RESULTS, write_json
from benchmarks.itl_chart import Pair, Stream, chart
from benchmarks.limits import conclude, judge

CONTEXTS = {"guide": 2048, "s135": 1024}
REPEATS = {"guide": 5, "s135": 2}  # the larger one takes most of the time
NUM_CLIENTS, NUM_PROMPTS = 8, 4
CLIENT_PROMPT = 32
NUM_WARM_UP, NUM_AFTER = 40, 20  # steps without the long prompts, before and after; only seen in the picture
NUM_ALONE = 20  # of the tokens before, those whose times say how long decodes alone take


class Run(NamedTuple):
    """When the clients' tokens came, and the long prompts' first ones; in seconds since these arrived."""

    token_times: list[list[float]]
    first_tokens: list[float]

    @property
    def gaps(self) -> list[float]:
        """The times between tokens, of all clients, until every long prompt has its first; the shortest first."""
        pairs = [pair for times in self.token_times for pair in pairwise(times)]
        return sorted(end - begin for begin, end in pairs if 0 < end <= self.first_tokens[-1])

    @property
    def alone(self) -> float:
        """The usual time between tokens without other requests, in seconds."""
        times = [at for at in self.token_times[0] if at <= 0]
        return statistics.median(end - begin for begin, end in pairwise(times[-NUM_ALONE:]))


def load(shape: str, itl_target: float) -> Engine:
    """Load one of the models."""
    context = CONTEXTS[shape]
    num_blocks = (NUM_CLIENTS + NUM_PROMPTS) * context // 16
    return load_model(shape, max_model_len=context, num_kv_blocks=num_blocks, itl_target=itl_target).engine


def beside_prompts(engine: Engine, name: str) -> Run:
    """Let the clients be answered, and the long prompts arrive."""
    rng, context = random.Random(name), engine.model_info.max_model_len
    clients = {f"{name}-client-{i}": i for i in range(NUM_CLIENTS)}
    for client in clients:
        add(engine, client, CLIENT_PROMPT, greedy(context - CLIENT_PROMPT), rng)
    token_times: list[list[float]] = [[] for _ in clients]
    first_tokens: list[float] = []

    def step() -> None:
        events = engine.step(monotonic())
        now = time.perf_counter() - arrival
        for event in events:
            if isinstance(event, TokenDelta):
                if event.request_id in clients:
                    token_times[clients[event.request_id]].append(now)
                else:
                    first_tokens.append(now)

    arrival = time.perf_counter()
    for _ in range(NUM_WARM_UP):
        step()
    waited = time.perf_counter() - arrival
    token_times = [[at - waited for at in times] for times in token_times]
    arrival += waited
    for index in range(NUM_PROMPTS):
        add(engine, f"{name}-long-{index}", context - 1, greedy(1), rng)
    while len(first_tokens) < NUM_PROMPTS:
        step()
    for _ in range(NUM_AFTER):
        step()
    for client in clients:
        engine.abort(client, monotonic())
    while engine.has_ready_work:
        engine.step(monotonic())
    return Run(token_times, first_tokens)


def compare(shape: str, repeat: int) -> tuple[list[Run], list[Run]]:
    """Return the runs with the budget and those without."""
    engines = [load(shape, target) for target in (ITL_TARGET_S, 0.0)]
    for engine in engines:
        beside_prompts(engine, "warm-up")
    runs: tuple[list[Run], list[Run]] = ([], [])
    for turn in range(repeat):
        for engine, found, label in zip(engines, runs, ("with the budget", "without"), strict=True):
            found.append(beside_prompts(engine, str(turn)))
            print(f"{shape:6}{label:16}{describe(found[-1])}", flush=True)
    return runs


def describe(found: Run) -> str:
    """Return the figures of one run in words."""
    shown = ", ".join(f"{name} {1e3 * percentile(found.gaps, share):.0f}" for name, share in SHARES.items())
    return f"ms between tokens: {shown}, alone {1e3 * found.alone:.0f}; s to the first tokens: " + " ".join(
        f"{at:.1f}" for at in found.first_tokens
    )


SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def figures(runs: Sequence[Run]) -> dict[str, object]:
    """Return the figures of some runs as they are written."""
    written: dict[str, object] = {"alone_s": [found.alone for found in runs]}
    written |= {f"{name}_s": [percentile(found.gaps, share) for found in runs] for name, share in SHARES.items()}
    return written | {"first_tokens_s": [found.first_tokens for found in runs]}


def p99(runs: Sequence[Run]) -> float:
    """Return the median of the 99th percentiles."""
    return statistics.median(percentile(found.gaps, 0.99) for found in runs)


def pair(shape: str, runs: tuple[list[Run], list[Run]]) -> Pair:
    """Return the data of the chart: the median run of each kind, and its first client."""
    middle = [sorted(each, key=lambda found: percentile(found.gaps, 0.99))[len(each) // 2] for each in runs]
    title = f"{shape}: {NUM_PROMPTS} prompts of {CONTEXTS[shape] - 1:,} tokens at 0 s"
    with_budget, without = (Stream(found.token_times[0], found.first_tokens) for found in middle)
    return Pair(title, ITL_TARGET_S, with_budget, without)


def add_options(parser: Parser) -> None:
    """Add how often, and which model."""
    parser.add_argument("--repeat", type=int, help="runs of each kind, default 5 for guide and 2 for s135")
    parser.add_argument("--shape", choices=tuple(CONTEXTS), help="only this model")


def run(args: argparse.Namespace) -> int:
    """Measure, write the figures and the picture, and judge."""
    written: dict[str, object] = {"benchmark": "itl", "machine": machine(), "itl_target_s": ITL_TARGET_S}
    pairs, verdicts = [], []
    for shape in [args.shape] if args.shape else CONTEXTS:
        runs = compare(shape, args.repeat or REPEATS[shape])
        gain = p99(runs[1]) / p99(runs[0])
        usual_s = max(ITL_TARGET_S, statistics.median(found.alone for found in runs[0]))
        name = "p99 between tokens, times the target or decodes alone"
        verdicts.append(verdict := judge("itl", name, p99(runs[0]) / usual_s, shape))
        print(f"{verdict}; {gain:.1f} times shorter than without", flush=True)
        by_kind = {"with": figures(runs[0]), "without": figures(runs[1])}
        limit_s = verdict.limit.value * usual_s
        written[shape] = {"context": CONTEXTS[shape], "p99_gain": gain, "limit_s": limit_s, **by_kind}
        pairs.append(pair(shape, runs))
    write_json(RESULTS / "itl.json", written)
    plots.save(chart(pairs), RESULTS / "itl.svg")
    print(plots.written(RESULTS / "itl.json", RESULTS / "itl.svg"))
    return conclude(verdicts)
