"""Time between tokens while long prompts arrive: 8 clients are answered, then 4 prompts of maximum length come.

`python -m benchmarks itl [--repeat N] [--shape guide|s135]` writes `results/itl.json` and `results/itl.svg`, and exits
1 when the 99th percentile with the step-time budget (`--itl-target`, at a server's default) is more than twice the
target, or twice what decodes alone take if that is more. Two engines in one process take turns, one with the budget and
one without; the engine alone, without a server. The price is told too: how long the long prompts wait for their first
tokens.

Two models: `guide` with its whole context, and the s135 shape (random weights) with half of its own, whose decodes
alone take longer than the target on a small CPU.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from app import LLM
from app.commands.throughput import machine
from app.commands.workload import SHAPES, write_shape
from app.contract.admission import admit
from app.contract.events import TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.build import ITL_TARGET_S
from app.engine.engine import Engine
from app.runtime.clock import monotonic
from benchmarks.itl_plot import Curve, Panel, plot

RESULTS = Path(__file__).parent / "results"
CONTEXTS = {"guide": 2048, "s135": 1024}
REPEATS = {"guide": 5, "s135": 2}  # the larger one takes most of the time
NUM_CLIENTS, NUM_PROMPTS = 8, 4
CLIENT_PROMPT = 32
NUM_WARM_UP, NUM_AFTER = 40, 20  # steps without the long prompts, before and after; only seen in the picture
NUM_ALONE = 20  # of the tokens before, those whose times say how long decodes alone take
MAX_STRETCH = 2.0  # the most that the 99th percentile may be of the target, or of decodes alone if they take longer


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
        """The usual time between tokens while nobody else is there; seconds."""
        times = [at for at in self.token_times[0] if at <= 0]
        return statistics.median(end - begin for begin, end in pairwise(times[-NUM_ALONE:]))

    def percentile(self, share: float) -> float:
        """The time that `share` of the gaps do not exceed."""
        gaps = self.gaps
        return gaps[min(len(gaps) - 1, int(share * len(gaps)))]


def make_llm(shape: str, itl_target: float) -> LLM:
    """Load one of the models."""
    context = CONTEXTS[shape]
    num_blocks = (NUM_CLIENTS + NUM_PROMPTS) * context // 16
    if shape not in SHAPES:
        return LLM(shape, max_model_len=context, num_kv_blocks=num_blocks, itl_target=itl_target)
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(shape, Path(folder)))
        return LLM(model, load_format="dummy", max_model_len=context, num_kv_blocks=num_blocks, itl_target=itl_target)


def run(engine: Engine, name: str) -> Run:
    """Let the clients be answered, and the long prompts arrive."""
    rng, context = random.Random(name), engine.model_info.max_model_len
    clients = {f"{name}-client-{i}": i for i in range(NUM_CLIENTS)}
    for client in clients:
        add(engine, client, CLIENT_PROMPT, context - CLIENT_PROMPT, rng)
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
        add(engine, f"{name}-long-{index}", context - 1, 1, rng)
    while len(first_tokens) < NUM_PROMPTS:
        step()
    for _ in range(NUM_AFTER):
        step()
    for client in clients:
        engine.abort(client, monotonic())
    while engine.has_ready_work:
        engine.step(monotonic())
    return Run(token_times, first_tokens)


def add(engine: Engine, request_id: str, num_prompt: int, num_new: int, rng: random.Random) -> None:
    """Submit a prompt that nobody has seen, for exactly `num_new` tokens."""
    prompt = tuple(rng.randrange(engine.model_info.vocab_size) for _ in range(num_prompt))
    params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    engine.add(EngineRequest(request_id, prompt, admit(prompt, params, engine.model_info), monotonic()))


def compare(shape: str, repeat: int) -> tuple[list[Run], list[Run]]:
    """Return the runs with the budget and those without."""
    engines = [make_llm(shape, target).engine for target in (ITL_TARGET_S, 0.0)]
    for engine in engines:
        run(engine, "warm-up")
    runs: tuple[list[Run], list[Run]] = ([], [])
    for turn in range(repeat):
        for engine, found, label in zip(engines, runs, ("with the budget", "without"), strict=True):
            found.append(run(engine, str(turn)))
            print(f"{shape:6}{label:16}{describe(found[-1])}", flush=True)
    return runs


def describe(found: Run) -> str:
    """Return the figures of one run in words."""
    shown = ", ".join(f"{name} {1e3 * found.percentile(share):.0f}" for name, share in SHARES.items())
    return f"ms between tokens: {shown}, alone {1e3 * found.alone:.0f}; s to the first tokens: " + " ".join(
        f"{at:.1f}" for at in found.first_tokens
    )


SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def figures(runs: Sequence[Run]) -> dict[str, object]:
    """Return the figures of some runs as they are written."""
    written: dict[str, object] = {"alone_s": [found.alone for found in runs]}
    written |= {f"{name}_s": [found.percentile(share) for found in runs] for name, share in SHARES.items()}
    return written | {"first_tokens_s": [found.first_tokens for found in runs]}


def p99(runs: Sequence[Run]) -> float:
    """Return the median of the 99th percentiles."""
    return statistics.median(found.percentile(SHARES["p99"]) for found in runs)


def panel(shape: str, runs: tuple[list[Run], list[Run]]) -> Panel:
    """Return what to draw: of each kind the run in the middle, and of that the first client."""
    middle = [sorted(each, key=lambda found: found.percentile(SHARES["p99"]))[len(each) // 2] for each in runs]
    title = f"{shape}: time between a client's tokens; {NUM_PROMPTS} prompts of {CONTEXTS[shape] - 1:,} tokens at 0 s"
    with_budget, without = (Curve(found.token_times[0], found.first_tokens) for found in middle)
    return Panel(title, ITL_TARGET_S, with_budget, without)


def main() -> int:
    """Measure, write the figures and the picture, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, help="runs of each kind, default 5 for guide and 2 for s135")
    parser.add_argument("--shape", choices=tuple(CONTEXTS), help="only this model")
    args = parser.parse_args()
    written: dict[str, object] = {"benchmark": "itl", "machine": machine(), "itl_target_s": ITL_TARGET_S}
    panels, missed = [], []
    for shape in [args.shape] if args.shape else CONTEXTS:
        runs = compare(shape, args.repeat or REPEATS[shape])
        gain = p99(runs[1]) / p99(runs[0])
        limit_s = MAX_STRETCH * max(ITL_TARGET_S, statistics.median(found.alone for found in runs[0]))
        print(f"{shape:6}p99 {1e3 * p99(runs[0]):.0f} ms, limit {1e3 * limit_s:.0f} ms; {gain:.1f} times shorter")
        by_kind = {"with": figures(runs[0]), "without": figures(runs[1])}
        written[shape] = {"context": CONTEXTS[shape], "p99_gain": gain, "limit_s": limit_s, **by_kind}
        panels.append(panel(shape, runs))
        if p99(runs[0]) > limit_s:
            missed.append(f"p99 of {shape}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "itl.json").write_text(json.dumps(written, indent=2) + "\n")
    (RESULTS / "itl.svg").write_text(plot(panels))
    if missed:
        print(f"missed: {'; '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
