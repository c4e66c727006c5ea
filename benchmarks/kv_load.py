"""The engine's scheduler under a load, with a model that computes nothing: the KV blocks in use after each step.

Every output has the length of its request, all n of a prompt the same, and all tokens are random, so that only the
prefixes of the load are shared.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from app.contract.engine_counts import QueueCounts
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import Sequence as TokenSequence
from app.engine.schedule.step_plan import Sample, StepResult
from app.loadgen.lengths import Lengths

VOCAB_SIZE = 50_000
BLOCK_SIZE = 16
NUM_BLOCKS = 15_700 // BLOCK_SIZE  # the KV slots of OPT-13B on an A100 with 40 GB, the paper's table 1
NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE


class Usage(NamedTuple):
    """The KV blocks in use after a step: how many there are, how many if no sequence shared any, and filled slots."""

    num_blocks: int
    num_unshared: int
    num_filled: int
    num_sequences: int
    has_waiting: bool

    @property
    def waste(self) -> float:
        """The share of their slots that holds no token."""
        return 1 - self.num_filled / (self.num_blocks * BLOCK_SIZE)

    @property
    def saved(self) -> float:
        """The share of blocks that sharing saves."""
        return 1 - self.num_blocks / self.num_unshared


LIMITS = SchedulerLimits(
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_model_len=2049,
)


def make_scheduler(**limits: int) -> Scheduler:
    """Return a scheduler with the paper's memory and the limits of a GPU, or with other `limits`."""
    return Scheduler(replace(LIMITS, **limits))  # type: ignore[arg-type]


def make_requests(lengths: Iterable[Lengths], prefix: tuple[int, ...] = (), n: int = 1) -> list[EngineRequest]:
    """Make requests with random prompts after a common `prefix`, and `n` answers each."""
    rng = random.Random(0)
    requests = []
    for number, (num_prompt, num_answer) in enumerate(lengths):
        prompt = prefix + tuple(rng.randrange(VOCAB_SIZE) for _ in range(num_prompt))
        chosen = SamplingParams(n=n, max_tokens=num_answer, seed=0)
        requests.append(EngineRequest(f"r{number}", prompt, chosen, float(number)))
    return requests


def answer(scheduler: Scheduler, requests: Iterable[EngineRequest]) -> list[Usage]:
    """Put all requests in line, answer them, and return the usage after each step."""
    rng = random.Random(1)
    for request in requests:
        scheduler.add(request)
    usages = []
    while (plan := scheduler.schedule(0.0)) is not None:
        samples = tuple(Sample(row.sequence_id, rng.randrange(VOCAB_SIZE)) for row in plan.sampled)
        progress = scheduler.update(StepResult(plan.step, samples), 0.0)
        usages.append(measure(scheduler))
        for sequence, _ in progress.gained:
            if len(sequence.output_token_ids) == sequence.request.params.max_tokens:
                scheduler.finish(sequence)
    assert scheduler.counts == QueueCounts(), "requests were left"
    return usages


def steady(usages: Sequence[Usage]) -> Sequence[Usage]:
    """Return the steps in which requests wait, without the first quarter, in which everything is young.

    Without waiting requests only the longest outputs are left, and few of them share anything.
    """
    waiting = [usage for usage in usages if usage.has_waiting]
    return waiting[len(waiting) // 4 :]


def measure(scheduler: Scheduler) -> Usage:
    """Look at the block tables of all that runs."""
    sequences = [sequence for group in scheduler.queues.running for sequence in group.open if sequence.block_table]
    filled = filled_slots(sequences)
    num_unshared = sum(len(sequence.block_table) for sequence in sequences)
    return Usage(len(filled), num_unshared, sum(filled.values()), len(sequences), bool(scheduler.queues.num_waiting))


def filled_slots(sequences: Iterable[TokenSequence]) -> dict[int, int]:
    """Return how many slots of each block hold a token; a shared block counts once."""
    filled: dict[int, int] = {}
    for sequence in sequences:
        num_full, num_rest = divmod(sequence.num_computed, BLOCK_SIZE)
        table = sequence.block_table
        filled.update(dict.fromkeys(table[:num_full], BLOCK_SIZE))
        for index, block_id in enumerate(table[num_full:]):
            filled[block_id] = max(filled.get(block_id, 0), num_rest if index == 0 else 0)
    return filled
