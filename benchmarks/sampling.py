"""Sampling: the cost of a step of sixteen rows with each kind of sampling parameters.

`python -m benchmarks sampling [--rounds N]` prints a table, writes `results/sampling.json`, and exits 1 when a step
costs more than 1.5 times the one of sixteen plain sampled rows (temperature 1), in CPU time or in wall time; steps with
log-probabilities are shown beside them.

The model is the checkpoint `wide` (`benchmarks/checkpoints.py`): one layer and a vocabulary of 151,936, so that the
share of sampling in a step is as large as possible. Times are those of `Engine.step` while sixteen outputs are decoded,
all with the same parameters: CPU time of the process, and wall time. The kinds take turns in each round; a round's
figure is the median of its steps, and a factor is the median over the rounds of a kind's figure over the plain one's.

By default a step has one thread: with more, the engine now and then tries fewer, and those that wait for the last one
spend CPU time on nothing.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from app import LLM, SamplingParams
from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.engine.engine import Engine
from app.loadgen.table import number, table
from app.observe.terminal import own_terminal
from app.runtime.clock import monotonic
from benchmarks.checkpoints import write_checkpoint
from benchmarks.engine_load import add
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import conclude, judge

NUM_ROWS, NUM_PROMPT = 16, 64
NUM_WARM_UP, NUM_STEPS = 4, 24
PLAIN = "plain, temperature 1"
_BIASES = {token_id: (-1.0) ** token_id for token_id in range(7, 150_000, 499)[:300]}
_PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
_FLAT = {"temperature": 2.0, "top_p": 0.95}
_ENDINGS = {"min_tokens": 1000, "stop_token_ids": list(range(100, 164))}
KINDS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"temperature": 1.0},
    "penalties": _PENALTIES,
    "bias of 300 ids": {"logit_bias": _BIASES},
    "min_tokens": _ENDINGS,
    "temperature 2, top_p 0.95": _FLAT,
    "top_k 1000": {"top_k": 1000},
    "min_p 0.05": {"min_p": 0.05},
    "20 logprobs": {"logprobs": 20},
    "all together": {**_PENALTIES, "logit_bias": _BIASES, **_ENDINGS, **_FLAT, "min_p": 1e-4},
    "all, 20 logprobs": {**_PENALTIES, "logit_bias": _BIASES, **_ENDINGS, **_FLAT, "min_p": 1e-4, "logprobs": 20},
}
# Half of what these add is the events that carry the log-probabilities: they are shown, and not judged.
WITH_LOGPROBS = tuple(kind for kind, asked in KINDS.items() if "logprobs" in asked)


class Times(NamedTuple):
    """Seconds of a step: of all the process's threads, and on the clock."""

    cpu: float
    wall: float


def measure(engine: Engine, given: Mapping[str, Any], seed: int) -> Times:
    """Return the median times of steps in which sixteen answers with these parameters are decoded."""
    rng = random.Random(seed)
    names = [f"{seed}-{row}" for row in range(NUM_ROWS)]
    for row, name in enumerate(names):
        params = SamplingParams(**{"max_tokens": 1000, "seed": row, "temperature": 1.0, **given})
        add(engine, name, NUM_PROMPT, params, rng)
    times = []
    for _ in range(NUM_WARM_UP + NUM_STEPS):
        cpu, wall = time.process_time(), time.perf_counter()
        engine.step(monotonic())
        times.append(Times(time.process_time() - cpu, time.perf_counter() - wall))
    for name in names:
        engine.abort(name, monotonic())
    kept = times[NUM_WARM_UP:]
    return Times(statistics.median(each.cpu for each in kept), statistics.median(each.wall for each in kept))


def factors(found: Mapping[str, Sequence[Times]]) -> dict[str, Times]:
    """Return how many times a plain step each kind's step costs."""
    plain = found[PLAIN]
    return {
        kind: Times(*(
            statistics.median(each[which] / other[which] for each, other in zip(runs, plain, strict=True))
            for which in range(2)
        ))
        for kind, runs in found.items()
    }  # fmt: skip


def rows(found: Mapping[str, Sequence[Times]]) -> Iterator[list[str]]:
    """Yield a row for each kind."""
    for kind, times in factors(found).items():
        cpu, wall = (1e3 * statistics.median(each[which] for each in found[kind]) for which in range(2))
        yield [kind, number(cpu), number(wall), f"{times.cpu:.2f}x", f"{times.wall:.2f}x"]


def add_options(parser: Parser) -> None:
    """Add how often, and with how many threads."""
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind, default 5")
    parser.add_argument("--threads", type=int, default=1, help="threads of a step, at most; default 1")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the figures, and judge."""
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_checkpoint("wide", Path(folder) / "wide"))
        engine = LLM(model, load_format="dummy", max_num_seqs=NUM_ROWS, max_model_len=2048, num_kv_blocks=2048).engine
        found: dict[str, list[Times]] = {kind: [] for kind in KINDS}
        for turn in range(args.rounds):
            for place, (kind, given) in enumerate(KINDS.items()):
                found[kind].append(measure(engine, given, turn * len(KINDS) + place))
    head = ["16 rows, vocabulary 151,936", "CPU ms", "wall ms", "CPU", "wall"]
    print("\n".join(table(own_terminal(), head, rows(found))))
    by_kind = {kind: [each._asdict() for each in runs] for kind, runs in found.items()}
    write_json(RESULTS / "sampling.json", {"benchmark": "sampling", "machine": machine(), "seconds": by_kind})
    judged = {kind: times for kind, times in factors(found).items() if kind not in WITH_LOGPROBS}
    return conclude(judge("sampling", "step", max(times), kind) for kind, times in judged.items())
