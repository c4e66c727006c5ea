"""Prompts that get on: eight clients at once against no target at all, and short prompts beside a very long one.

`python -m benchmarks prompts [--rounds N] [--part burst|long] [--shape NAME] [--long TOKENS]` writes
`results/prompts.json`, prints a table, and exits 1 when the median of a figure misses its limit.

burst   On `guide`, the s135 shape and one like Qwen3-0.6B (both with random weights) eight clients come at once, each
        with a prompt of 200 tokens. With the default `--itl-target` all must be done within 1.3 times what it takes
        without one, and the 99th percentile of the time between tokens be at most 2.5 times that of decodes alone, or
        1.3 times the target if that is more. Two engines in one process take turns; no server.
long    A server of `long` (one layer, context 262,144) with eight streams that decode. A prompt of 400 tokens must get
        its first token within 3 times the time it takes beside these when one of 250,000 tokens is being computed too;
        that one may take 1.5 times as long as beside the same streams, while such a short one comes each second.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from app.commands.measuring.machine import machine
from app.commands.measuring.workload import SHAPES
from app.commands.options import Parser
from app.config.step_target import ITL_TARGET_S
from app.contract.events import TokenDelta
from app.engine.engine import Engine
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.runtime.clock import monotonic
from benchmarks.api_client import ApiClient
from benchmarks.checkpoints import write_checkpoint
from benchmarks.engine_load import add, greedy, load_model
from benchmarks.figures import RESULTS, spread, write_json
from benchmarks.limits import Verdict, conclude, judge, limits
from benchmarks.server_process import serving

QWEN3_06B = SHAPES["q05"] | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
MODELS: dict[str, str | dict[str, object]] = {"guide": "guide", "s135": "s135", "q06": QWEN3_06B}
NUM_CLIENTS, NUM_PROMPT, NUM_NEW = 8, 200, 32
SHORT, EVERY_S, NUM_QUIET = 400, 1.0, 12
NUM_STREAM = 2000  # tokens of each answer of those that decode
OPTIONS = ("--load-format", "dummy", "--kv-cache-memory", "1GiB", "--no-enable-prefix-caching")


class Figure(NamedTuple):
    """What each round found."""

    what: str
    name: str
    rounds: list[float]

    @property
    def verdict(self) -> Verdict:
        """The median held against its limit."""
        return judge("prompts", self.name, statistics.median(self.rounds), self.what)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


# --- Eight clients at once ----------------------------------------------------------------------------------------


class Burst(NamedTuple):
    """Seconds: until all were done, until the last first token, the 99th percentile between tokens, decodes alone."""

    total: float
    first: float
    p99: float
    alone: float


def load(name: str, itl_target: float) -> Engine:
    """Load one of the models; those that are shapes get random weights."""
    return load_model(MODELS[name], num_kv_blocks=512, max_model_len=1024, itl_target=itl_target).engine


def burst(engine: Engine, name: str) -> Burst:
    """Let the clients come at once, and answer them."""
    rng = random.Random(name)
    began = time.perf_counter()
    times: dict[str, list[float]] = {f"{name} {number}": [] for number in range(NUM_CLIENTS)}
    for client in times:
        add(engine, client, NUM_PROMPT, greedy(NUM_NEW), rng)
    while engine.has_ready_work:
        events = engine.step(monotonic())
        now = time.perf_counter() - began
        for event in events:
            if isinstance(event, TokenDelta):
                times[event.request_id].append(now)
    gaps = sorted(later - earlier for each in times.values() for earlier, later in pairwise(each))
    firsts = [each[0] for each in times.values()]
    alone = [later - earlier for each in times.values() for earlier, later in pairwise(each) if earlier >= max(firsts)]
    last = max(each[-1] for each in times.values())
    return Burst(last, max(firsts), gaps[int(0.99 * len(gaps))], statistics.median(alone))


def bursts(name: str, num_rounds: int) -> list[Figure]:
    """Compare a model with the target and without it."""
    engines = {target: load(name, target) for target in (ITL_TARGET_S, 0.0)}
    for engine in engines.values():
        burst(engine, "warm-up")
    slower, stretches = [], []
    stretch = limits("prompts")["p99 between tokens, times that of decodes alone"]
    of_target = limits("prompts")["p99 between tokens, times the target"]
    for turn in range(num_rounds):
        found = {target: burst(engine, f"{turn}") for target, engine in engines.items()}
        with_target, without = found.values()
        slower.append(with_target.total / without.total)
        limit_s = max(stretch.value * with_target.alone, of_target.value * ITL_TARGET_S)
        stretches.append(with_target.p99 / limit_s)
        for target, each in found.items():
            shown = f"all done {each.total:.2f} s, last first token {each.first:.2f} s, p99 {1e3 * each.p99:.0f} ms"
            what = f"{name:6} round {turn + 1} of {num_rounds}, target {1e3 * target:.0f} ms"
            say(f"{what}: {shown}, alone {1e3 * each.alone:.0f} ms")
    return [
        Figure(name, "all done, times that without a target", slower),
        Figure(name, "p99 between tokens, times its limit", stretches),
    ]


# --- Beside a long prompt -----------------------------------------------------------------------------------------


async def complete(client: ApiClient, num_prompt: int, num_new: int) -> float:
    """Request a completion of a new prompt; return its seconds."""
    prompt = [random.randrange(3000) for _ in range(num_prompt)]
    began = time.perf_counter()
    answer = await client.post("/v1/completions", {"prompt": prompt, "max_tokens": num_new, "temperature": 0})
    assert answer.status == 200, f"rejected: {answer.content[:500]!r}"
    return time.perf_counter() - began


async def shorts(client: ApiClient, is_over: Callable[[int], bool]) -> list[float]:
    """Let a short prompt come each second, at any moment of a step; return what each took."""
    waits: list[float] = []
    while not is_over(len(waits)):
        await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))
        waits.append(await complete(client, SHORT, 1))
    return waits


async def keep_decoding(client: ApiClient) -> None:
    """Have one answer after the other, none so long that decoding gets slower."""
    while True:
        await complete(client, 32, NUM_STREAM)


async def beside(client: ApiClient, num_long: int, name: str) -> tuple[float, float]:
    """Return how many times as long a short prompt takes beside a long one, and a long one beside short ones."""
    streams = [asyncio.create_task(keep_decoding(client)) for _ in range(NUM_CLIENTS)]
    quiet = statistics.median(await shorts(client, lambda count: count >= NUM_QUIET))
    say(f"{name}: a prompt of {SHORT} tokens takes {1e3 * quiet:.0f} ms beside {NUM_CLIENTS} streams")
    alone = await complete(client, num_long, 1)
    say(f"{name}: one of {num_long:,} takes {alone:.1f} s beside them")
    long = asyncio.create_task(complete(client, num_long, 1))
    waits = await shorts(client, lambda _: long.done())
    together = await long
    for stream in streams:
        assert not stream.done(), f"a stream has ended: {stream.exception()}"
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    waited = statistics.median(waits[:-1])
    say(f"{name}: together {together:.1f} s, and {1e3 * waited:.0f} ms (at most {1e3 * max(waits):.0f})")
    return waited / quiet, together / alone


def beside_long(num_rounds: int, num_long: int) -> list[Figure]:
    """Measure short prompts beside a long one, a server for each round."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint("long", Path(folder) / "long")
        for turn in range(num_rounds):
            with serving(str(model), *OPTIONS) as server:
                found.append(asyncio.run(beside(server.client(), num_long, f"long   round {turn + 1} of {num_rounds}")))
    waits, longs = map(list, zip(*found, strict=True))
    return [
        Figure("long", "a short prompt beside the long one, times that without", waits),
        Figure("long", "the long prompt beside short ones, times that without", longs),
    ]


def add_options(parser: Parser) -> None:
    """Add how often, and what of it."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each part, default 5")
    parser.add_argument("--part", choices=("burst", "long"), help="only this part")
    parser.add_argument("--shape", choices=tuple(MODELS), help="only this model in the first part")
    parser.add_argument("--long", type=int, default=250_000, help="tokens of the long prompt, default 250,000")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures, and judge."""
    figures: list[Figure] = []
    if args.part != "long":
        for name in [args.shape] if args.shape else MODELS:
            figures += bursts(name, args.rounds)
    if args.part != "burst":
        figures += beside_long(args.rounds, args.long)
    rows = [[f"{figure.what}: {figure.name}", spread(figure.rounds), str(figure.verdict.limit)] for figure in figures]
    print("\n".join(table(own_terminal(), ["", "median (min-max)", "limit"], rows)))
    written = {"benchmark": "prompts", "machine": machine(), "num_long": args.long}
    found = [figure._asdict() | {"is_met": figure.verdict.is_met} for figure in figures]
    write_json(RESULTS / "prompts.json", {**written, "figures": found})
    return conclude(figure.verdict for figure in figures)
