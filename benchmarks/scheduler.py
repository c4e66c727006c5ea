"""Engine-thread time outside the model: what a step of 256 sequences, an event and a token of output cost.

`python -m benchmarks scheduler [--repeat N]` writes `results/scheduler.json`, and exits 1 when a figure misses its
limit.

The engine is the real one around a model that computes nothing (`idle_engine.py`). Times are `time.thread_time()` of
`Engine.step` and `Engine.stats`, as the engine thread calls them, less that of the model's replacement; the output loop
is measured separately. Each repeat has 128 hosts, which are sequences that run in all 12 rounds of 16 steps, and in
each round 128 guests, which are sequences of that round, in a pool that is full of blocks of the prefix cache:

    step 0        all hosts take a block; step 15: it is full, and goes to the prefix cache
    step 4        the guests start, with new prompts: every block that they allocate evicts another
    step 9        the first host has taken all blocks of the guests, and they start again
    step 12       the guests end; step 13: their rows are free

The other steps only decode: those of hosts and guests together are the steady ones. An event costs what its steps
take more than those around them, divided by the number of sequences. The guests of every second round have prompts of
128 tokens, the others' are shorter than a block: the difference is the cost of the blocks of a prompt.

What prefix caching costs where nothing is ever found is the difference between the same load with it and without it,
over the time that the s135 shape (random weights) takes for that load.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from app.commands.measuring.machine import machine
from app.commands.measuring.workload import Workload, random_workload
from app.commands.options import Parser
from app.contract.engine_counts import QueueCounts
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.scheduler import Scheduler
from app.loadgen.table import table
from app.observe.terminal import own_terminal
from app.runtime.clock import monotonic
from app.runtime.gc_tuning import freeze_after_startup
from benchmarks.engine_load import greedy, load_model
from benchmarks.figures import RESULTS, spread, write_json
from benchmarks.idle_engine import BLOCK_SIZE, VOCAB_SIZE, IdleEngine
from benchmarks.limits import Verdict, conclude, limits

NUM_HOSTS, NUM_GUESTS = 128, 128
LONG, SHORT = 128, 8  # tokens of a prompt
ROUND = BLOCK_SIZE  # steps
NUM_ROUNDS = 12
ADD, PREEMPT, END = 4, 9, 12  # positions in a round
STEADY, ALONE = (6, 7, 8, 10, 11), (1, 2, 3, 14)
OUTPUTS = {
    "plain": SamplingParams(temperature=0.0, seed=0),
    "seeded": SamplingParams(temperature=1.0, seed=7),
    "four stop strings": SamplingParams(stop=("\n\nUser:", "###", "<end>", "Observation:"), seed=0),
    "five logprobs": SamplingParams(logprobs=5, seed=0),
}


class Figure(NamedTuple):
    """What one thing cost in each repeat."""

    name: str
    unit: str
    runs: tuple[float, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The middle repeat held against its limit; None where nothing is required."""
        limit = limits("scheduler").get(self.name)
        return Verdict(limit, statistics.median(self.runs)) if limit else None

    def to_json(self) -> dict[str, object]:
        """Return all of it."""
        at_most, is_met = (self.verdict.limit.value, self.verdict.is_met) if self.verdict else (None, True)
        return self._asdict() | {"at_most": at_most, "median": statistics.median(self.runs), "is_met": is_met}


class Round(NamedTuple):
    """Thread seconds of one round: of its steps, of adding and preempting guests, and of output per token."""

    num_prompt: int
    steps: list[float]
    add: float
    preempt: float
    output: float

    @property
    def steady(self) -> float:
        """A step that only decodes hosts and guests."""
        return statistics.median(self.steps[position] for position in STEADY)

    @property
    def alone(self) -> float:
        """A step that only decodes hosts."""
        return statistics.median(self.steps[position] for position in ALONE)

    def event_seconds(self) -> dict[str, float]:
        """Seconds of each kind of event, for one sequence; those of guests with a short prompt are not all events."""
        steps = self.steps
        added = (self.add + steps[ADD] - self.steady) / NUM_GUESTS
        if self.num_prompt == SHORT:
            return {"added": added}
        return {
            f"added, prompt of {LONG} tokens": added,
            "crossing a block boundary": (steps[0] + steps[-1] - 2 * self.alone) / NUM_HOSTS,
            "preempted": self.preempt / NUM_GUESTS,
            "started again": (steps[PREEMPT] - self.steady) / NUM_GUESTS,
            "finished": (steps[END] - self.steady + steps[END + 1] - self.alone) / NUM_GUESTS,
        }


def live(idle: IdleEngine, number: int, params: SamplingParams) -> list[Round]:
    """Run the rounds of one life, to the end of all sequences."""
    gc.collect()
    idle.add(make_requests(f"{number}-host", NUM_HOSTS, LONG, ROUND * NUM_ROUNDS + 1, params))
    running = idle.engine.scheduler.queues.running
    while not (running and all(group.open[0].output_token_ids for group in running)):
        idle.step()
    rounds = [play(idle, f"{number}-{index}", (LONG, SHORT)[index % 2], params) for index in range(NUM_ROUNDS)]
    assert idle.engine.scheduler.counts == QueueCounts(), "the steps are not where they are meant to be"
    return rounds


def play(idle: IdleEngine, name: str, num_prompt: int, params: SamplingParams) -> Round:
    """Run one round."""
    steps, outputs, add, preempt = [], [], 0.0, 0.0
    for position in range(ROUND):
        if position == ADD:
            add = idle.add(make_requests(name, NUM_GUESTS, num_prompt, END - ADD + 1, params))
        if position == PREEMPT:
            preempt = take_guests(idle.engine.scheduler)
        own, output = idle.step()
        steps.append(own)
        if position in STEADY:
            outputs.append(output / (NUM_HOSTS + NUM_GUESTS))
    return Round(num_prompt, steps, add, preempt, statistics.median(outputs))


def make_requests(name: str, count: int, num_prompt: int, num_new: int, params: SamplingParams) -> list[EngineRequest]:
    """Return requests with new prompts."""
    rng = random.Random(name)
    chosen = replace(params, max_tokens=num_new, ignore_eos=True)
    return [
        EngineRequest(f"{name}-{i}", tuple(rng.randrange(VOCAB_SIZE) for _ in range(num_prompt)), chosen, monotonic())
        for i in range(count)
    ]


def take_guests(scheduler: Scheduler) -> float:
    """Let the first sequence ask for the blocks of all guests; return the seconds that took."""
    victims = scheduler.queues.running[-NUM_GUESTS:]
    count = scheduler.tables.pool.num_free + sum(len(group.open[0].block_table) for group in victims)
    before = scheduler.preemption.counts.num_preemptions
    began = time.thread_time()
    scheduler.preemption.for_growth(scheduler.queues.running[0], count)
    seconds = time.thread_time() - began
    assert scheduler.preemption.counts.num_preemptions - before == NUM_GUESTS, "other victims than meant"
    return seconds


def lives(repeat: int) -> list[Figure]:
    """Measure steps, events and output."""
    num_blocks = NUM_HOSTS * (LONG // BLOCK_SIZE + NUM_ROUNDS) + NUM_GUESTS * 10 + 100
    most = NUM_HOSTS + NUM_GUESTS
    idle = IdleEngine(num_blocks=num_blocks, max_num_seqs=most, max_tokens=most * LONG)
    live(idle, 0, OUTPUTS["plain"])  # fills the pool and warms the caches
    freeze_after_startup()  # as the server does when the model is loaded
    found: dict[str, list[list[Round]]] = {name: [] for name in OUTPUTS}
    for turn in range(repeat):
        for index, (name, params) in enumerate(OUTPUTS.items()):
            found[name].append(live(idle, 1 + turn * len(OUTPUTS) + index, params))
    assert idle.engine.scheduler.planner.starts.counts.num_prefix_hits == 0, "a prompt was known"
    steady = _us(_median(each.steady for each in rounds) for rounds in found["plain"])
    figures = [Figure("step of 256 unchanged sequences", "µs", steady)]
    figures += _events(found["plain"])
    for name, some in found.items():
        tokens = _us(_median(each.output for each in rounds) for rounds in some)
        figures.append(Figure(f"token of output, {name}", "µs", tokens))
    return figures


def _events(some: list[list[Round]]) -> list[Figure]:
    """Return the cost of each kind of event; that of a prompt's blocks is separate."""
    costs: dict[str, list[float]] = {}
    for rounds in some:
        each = [one.event_seconds() for one in rounds]
        for name in each[1] | each[0]:
            costs.setdefault(name, []).append(_median(seconds[name] for seconds in each if name in seconds))
    long = costs.pop(f"added, prompt of {LONG} tokens")
    blocks = [(one - other) / (LONG // BLOCK_SIZE) for one, other in zip(long, costs["added"], strict=True)]
    again = costs.pop("started again")
    return [
        *(Figure(f"sequence {name}", "µs", _us(values)) for name, values in costs.items()),
        Figure("block of a new prompt", "µs", _us(blocks)),
        Figure(f"sequence with a prompt of {LONG} tokens added", "µs", _us(long)),
        Figure("sequence started again", "µs", _us(again)),
    ]


def caching(repeat: int, num_requests: int) -> list[Figure]:
    """Measure what prefix caching costs when nothing is found."""
    load = random_workload(num_requests, 49152)
    model_s = s135_seconds(load)
    num_blocks = sum(
        -(-(len(prompt) + new) // BLOCK_SIZE) for prompt, new in zip(load.prompts, load.num_new_tokens, strict=True)
    )
    engines = {
        is_on: IdleEngine(num_blocks=num_blocks, max_num_seqs=64, max_tokens=512, is_caching=is_on)
        for is_on in (True, False)
    }
    shares = []
    for turn in range(repeat + 1):
        seconds = {}
        for is_on, idle in engines.items():
            gc.collect()
            seconds[is_on] = idle.run(_requests(_renewed(load, turn), turn))
        shares.append((seconds[True] - seconds[False]) / model_s)
    assert engines[True].engine.scheduler.planner.starts.counts.num_prefix_hits == 0, "a prompt was known"
    percent = tuple(100 * share for share in shares[1:])  # the first one fills the pool and warms the caches
    cpu = Figure("engine thread of s135 for the load", "s", (model_s,))
    return [cpu, Figure("prefix caching at 0 % hits", "%", percent)]


def s135_seconds(load: Workload) -> float:
    """Return the CPU seconds of the engine's thread that the s135 shape takes for `load`; other threads help it."""
    llm = load_model("s135", enable_prefix_caching=False)
    prompts = [list(prompt) for prompt in load.prompts]
    params = [greedy(new) for new in load.num_new_tokens]
    began = time.thread_time()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.thread_time() - began
    llm.close()
    return seconds


def _renewed(load: Workload, turn: int) -> Workload:
    """The same lengths with other tokens."""
    return Workload(tuple(tuple((i + turn) % 49152 for i in prompt) for prompt in load.prompts), load.num_new_tokens)


def _requests(load: Workload, turn: int) -> list[EngineRequest]:
    return [
        EngineRequest(f"{turn}-{index}", prompt, SamplingParams(temperature=0.0, max_tokens=new, seed=0), 0.0)
        for index, (prompt, new) in enumerate(zip(load.prompts, load.num_new_tokens, strict=True))
    ]


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _us(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(1e6 * each for each in seconds)


def add_options(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--repeat", type=int, default=7, help="lives of each kind, default 7")
    parser.add_argument(
        "--requests", type=int, default=32, help="requests of the prefix caching load, default 32; 0: none"
    )


def run(args: argparse.Namespace) -> int:
    """Measure everything, write the figures, and judge the medians."""
    figures = lives(args.repeat)
    if args.requests:
        figures += caching(args.repeat, args.requests)
    verdicts = [figure.verdict for figure in figures if figure.verdict]
    print("\n".join(table(own_terminal(), ["", "median (min-max)", "limit"], map(_row, figures))))
    written = {"benchmark": "scheduler", "machine": machine(), "repeats": args.repeat}
    write_json(RESULTS / "scheduler.json", {**written, "figures": [figure.to_json() for figure in figures]})
    return conclude(verdicts)


def _row(figure: Figure) -> list[str]:
    limit = limits("scheduler").get(figure.name)
    return [f"{figure.name}, {figure.unit}", spread(figure.runs), str(limit or "")]
