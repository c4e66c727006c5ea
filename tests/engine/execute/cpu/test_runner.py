"""From plan to samples: logits of each sequence, block copies, and the state kept between steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from app.contract.sampling_params import SamplingParams
from app.engine.execute.cpu.batch import BatchState, StepInputs
from app.engine.execute.cpu.runner import CpuRunner
from app.engine.execute.host_sampler import Sampler
from app.engine.execute.interfaces import InFlight
from app.engine.execute.kv_cache import KVCache, KVLayout
from app.engine.execute.worker_masks import make_masks
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import (
    BlockCopy,
    Chunk,
    Chunks,
    RowStart,
    SampleLogprobs,
    SampleRow,
    StepPlan,
    TableWrite,
)
from app.text.grammar.cache import GrammarCache
from tests.engine.execute.injected_faults import InjectedError, InjectedFaults

LAYOUT = KVLayout(block_size=2, num_layers=2, num_kv_heads=1, head_dim=3, dtype=torch.float32)


class OneHotGraph:
    """A graph whose logits at a token row select the id after this row's token. It records the tokens of each step.

    `samples` replaces the samples of kernels.
    """

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.samples: FixedSamples | None = None
        self.on_run: Callable[[], None] = lambda: None

    def run(self, inputs: StepInputs) -> torch.Tensor:
        self.steps.append(inputs.ids_T.tolist())
        self.on_run()
        return torch.nn.functional.one_hot(inputs.ids_T[inputs.logit_rows_R] + 1, 50).float()


class FixedSamples:
    """Replaces a SampleRecord: the same tokens and log-probabilities in every step."""

    def __init__(self, token_ids: list[int], logprobs: dict[int, SampleLogprobs] | None = None) -> None:
        self.token_ids = lambda count: token_ids
        self.logprobs = lambda count: logprobs or {}


class StepSizeRecorder:
    """Replaces ThreadChoice: records step sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        self.sizes.append(num_tokens)
        yield


def broken() -> None:
    """Fail as a model that finds too little memory."""
    raise MemoryError


class RunnerSetup:
    """A runner and its parts."""

    def __init__(self, num_blocks: int = 8, num_host_blocks: int = 6) -> None:
        self.batch, self.graph, self.sampler, self.recorder = (
            BatchState(4, 8, 32, 2),
            OneHotGraph(),
            Sampler(()),
            StepSizeRecorder(),
        )
        self.cache = KVCache(LAYOUT, num_blocks, num_host_blocks)
        self.now = 0.0
        masks = make_masks(GrammarCache(), self.batch.buffers.masks, 8, (), 1, 4)
        parts = (self.batch, self.graph, self.sampler, self.cache, self.recorder, masks)
        self.runner = CpuRunner(*parts, clock=lambda: self.now)

    def launch(self, plan: StepPlan) -> InFlight:
        return self.runner.launch(plan)

    def write(self, block: int, value: float) -> None:
        """Fill a device block."""
        for layer, (keys, values) in enumerate(self.cache.layers):
            keys[block], values[block] = value + layer / 8, -value - layer / 8

    def read(self, block: int) -> float:
        """The value of a device block, the same in all its parts."""
        value = float(self.cache.layers[0][0][block, 0, 0, 0])
        for layer, (keys, values) in enumerate(self.cache.layers):
            assert (keys[block] == value + layer / 8).all() and (values[block] == -value - layer / 8).all()
        return value


def begin(row: int, sequence_id: int, choice: int = 0, **params: object) -> RowStart:
    sampling = RowSampling.of(SamplingParams(**{"temperature": 0.0, "seed": 0, **params}))
    return RowStart(row, sequence_id, choice, sampling, (1,), ())


def plan(step: int = 1, **fields: object) -> StepPlan:
    chunks = Chunks.of(fields.pop("chunks", ()))
    return StepPlan(**{"step": step, "chunks": chunks, "logit_rows": (), "sampled": (), **fields})


PLAN = plan(
    3,
    chunks=(Chunk(1, 11, 4, (7,)), Chunk(2, 12, 0, (20, 21, 22)), Chunk(3, 13, 2, (30, 31))),
    logit_rows=(0, 5),
    sampled=(SampleRow(1, 11), SampleRow(3, 13)),
    row_starts=(begin(1, 11), begin(2, 12), begin(3, 13)),
)


def test_samples_are_in_the_order_of_the_logit_rows():
    setup = RunnerSetup()
    in_flight = setup.launch(PLAN)
    result = in_flight.wait()
    assert in_flight.plan is PLAN and result.step == 3
    assert [(sample.sequence_id, sample.token_id) for sample in result.samples] == [(11, 8), (13, 32)]
    assert setup.recorder.sizes == [6]


def test_a_chunk_that_ends_inside_its_prompt_samples_nothing():
    setup = RunnerSetup()
    result = setup.launch(plan(chunks=(Chunk(2, 12, 0, (20, 21)),), row_starts=(begin(2, 12),))).wait()
    assert result.samples == ()


def test_several_sequences_sample_from_one_token_row():
    """Choices of one prompt: 1 and 2 start in the step that ends the prompt of choice 0, and have no chunk."""
    setup = RunnerSetup()
    several = plan(
        chunks=(Chunk(1, 11, 0, (7, 8)), Chunk(4, 14, 0, (40,))),
        logit_rows=(1, 1, 1, 2),
        sampled=(SampleRow(1, 11), SampleRow(2, 12), SampleRow(3, 13), SampleRow(4, 14)),
        row_starts=(begin(1, 11), begin(2, 12, 1, logit_bias={30: 9.0}), begin(3, 13, 2), begin(4, 14)),
    )
    samples = setup.launch(several).wait().samples
    assert [(sample.sequence_id, sample.token_id) for sample in samples] == [(11, 9), (12, 30), (13, 9), (14, 41)]


def test_a_sequence_with_a_draft_samples_consecutive_positions():
    """Tokens 8 to 10 may end the output from its seventh token on, which is the third of this step."""
    setup = RunnerSetup()
    with_draft = plan(
        chunks=(Chunk(1, 11, 4, (6, 7, 8, 9)), Chunk(2, 12, 3, (40,))),
        logit_rows=(0, 1, 2, 3, 4),
        sampled=(*[SampleRow(1, 11)] * 4, SampleRow(2, 12)),
        row_starts=(begin(1, 11, min_tokens=6, stop_token_ids=[8, 9, 10]), begin(2, 12)),
        num_draft_tokens=3,
    )
    samples = setup.launch(with_draft).wait().samples
    assert [(sample.sequence_id, sample.token_id) for sample in samples] == [
        (11, 7), (11, 0), (11, 9), (11, 10), (12, 41),
    ]  # fmt: skip


def test_only_sequences_that_request_logprobs_have_them():
    setup = RunnerSetup()
    starts = (begin(1, 11), begin(2, 12, 0, logprobs=2), begin(3, 13, 0, n=1, best_of=2))
    samples = setup.launch(
        plan(
            chunks=(Chunk(1, 11, 0, (7,)),),
            logit_rows=(0, 0, 0),
            sampled=(SampleRow(1, 11), SampleRow(2, 12), SampleRow(3, 13)),
            row_starts=starts,
        )
    ).wait().samples  # fmt: skip
    assert [None if each.logprobs is None else len(each.logprobs.top_token_ids) for each in samples] == [None, 2, 0]


def test_samples_of_the_device_are_used_and_beams_sampled_on_the_host():
    """The logits select 8 for all rows; the samples of the fake device are different."""
    setup = RunnerSetup()
    beam = begin(2, 12, use_beam_search=True, beam_width=2)
    starts = (begin(1, 11, presence_penalty=1.0), beam, begin(3, 13, logprobs=1), begin(4, 14))
    found = SampleLogprobs(-0.5, 1, (44,), (-0.5,))
    setup.graph.samples = FixedSamples([33, -1, 44, 33], {2: found})
    chunks = (Chunk(1, 11, 0, (7,)),)
    sampled = (SampleRow(1, 11), SampleRow(2, 12), SampleRow(3, 13), SampleRow(4, 14))
    samples = setup.launch(plan(chunks=chunks, logit_rows=(0,) * 4, sampled=sampled, row_starts=starts)).wait().samples
    assert [(sample.sequence_id, sample.token_id) for sample in samples] == [(11, 33), (12, 8), (13, 44), (14, 33)]
    assert [each.logprobs for each in samples if each.sequence_id != 12] == [None, found, None]
    assert samples[1].logprobs.top_token_ids[0] == 8
    assert setup.runner.num_host_samples == 1
    assert setup.sampler._rows[1].output == [], "the host does not record rows sampled by the device"


def test_samples_of_the_device_alone_are_used_unchanged():
    setup = RunnerSetup()
    setup.graph.samples = FixedSamples([33, 44])
    result = setup.launch(PLAN).wait()
    assert [(each.sequence_id, each.token_id, each.logprobs) for each in result.samples] == [
        (11, 33, None), (13, 44, None)
    ]  # fmt: skip


@pytest.mark.parametrize("hook", ["before_launch", "before_transfer", "before_sample"])
def test_a_step_that_raises_has_applied_the_row_changes(hook: str):
    """The next plan does not repeat them: a released row can be started by another sequence."""
    setup = RunnerSetup()
    InjectedFaults(**{hook: {1 if hook == "before_transfer" else 2}}).wrap(setup)
    setup.launch(PLAN)
    with pytest.raises(InjectedError, match=hook):
        setup.launch(
            plan(
                4,
                chunks=(Chunk(2, 99, 0, (5,)),),
                logit_rows=(0,),
                sampled=(SampleRow(2, 99),),
                row_starts=(begin(2, 99),),
                table_writes=(TableWrite(2, 1, (6, 7)),),
                released_rows=(1, 2),
                copies=(BlockCopy(1, 2),),
            )
        )
    assert set(setup.sampler._rows) == {2, 3}
    assert setup.batch.buffers.block_tables_SB[2].tolist() == [0, 6, 7, 0, 0, 0, 0, 0]
    again = setup.launch(plan(5, chunks=(Chunk(2, 99, 0, (5,)),), logit_rows=(0,), sampled=(SampleRow(2, 99),)))
    assert again.wait().samples[0].sequence_id == 99


def test_a_copy_or_a_model_that_raises_has_applied_the_row_changes():
    setup = RunnerSetup()
    setup.graph.on_run = broken
    with pytest.raises(MemoryError):
        setup.launch(PLAN)
    with pytest.raises(IndexError):
        setup.launch(plan(4, released_rows=(1,), table_writes=(TableWrite(3, 0, (5,)),), copies=(BlockCopy(1, 99),)))
    assert set(setup.sampler._rows) == {2, 3}
    assert setup.batch.buffers.block_tables_SB[3, 0] == 5


def test_a_step_that_raises_before_sampling_does_not_change_the_sampler():
    """Penalties and noise positions of other rows remain those of their known tokens."""
    setup = RunnerSetup()
    once = plan(
        chunks=(Chunk(1, 11, 0, (7,)),),
        logit_rows=(0,),
        sampled=(SampleRow(1, 11),),
        row_starts=(begin(1, 11, presence_penalty=1.0),),
    )
    setup.launch(once)
    setup.graph.on_run = broken
    with pytest.raises(MemoryError):
        setup.launch(plan(2, chunks=once.chunks, logit_rows=(0,), sampled=once.sampled))
    row = setup.sampler._rows[1]
    assert row.output == [8] and row.counts == {8: 1}


def test_hooks_are_called_in_order_and_only_if_needed():
    setup, faults = RunnerSetup(), InjectedFaults()
    faults.wrap(setup)
    setup.launch(PLAN).wait()
    setup.launch(plan(4, copies=(BlockCopy(1, 2),))).wait()
    setup.launch(plan(5, chunks=(Chunk(1, 11, 0, (7,)),), swap_outs=(BlockCopy(1, 2),))).wait()
    assert faults.seen == [
        ("before_launch", 3), ("before_sample", 3), ("before_result", 3),
        ("before_launch", 4), ("before_transfer", 4), ("before_result", 4),
        ("before_launch", 5), ("before_transfer", 5), ("before_sample", 5), ("before_result", 5),
    ]  # fmt: skip


def test_a_plan_without_chunks_only_moves_blocks():
    setup = RunnerSetup()
    setup.write(3, 5.0)
    result = setup.launch(plan(copies=(BlockCopy(3, 4),))).wait()
    assert setup.read(4) == 5.0 and result.samples == ()
    assert setup.graph.steps == [] and setup.recorder.sizes == []


def test_blocks_are_moved_before_the_chunks_are_computed():
    setup = RunnerSetup()
    setup.write(3, 5.0)
    values = []
    setup.graph.on_run = lambda: values.append(setup.read(4))
    setup.launch(plan(chunks=(Chunk(1, 11, 0, (7,)),), copies=(BlockCopy(3, 4),)))
    assert values == [5.0]


def test_chunks_and_transfers_are_timed_separately():
    setup = RunnerSetup()
    setup.graph.on_run = lambda: tick(3.0)

    def tick(seconds: float) -> None:
        setup.now += seconds

    setup.cache.swap_out = lambda copies: tick(0.5)
    chunks = (Chunk(1, 11, 0, (7,)),)
    both = setup.launch(plan(chunks=chunks, swap_outs=(BlockCopy(1, 1),))).wait()
    assert (both.duration_s, both.transfer_s) == (3.0, 0.5)
    neither = setup.launch(plan()).wait()
    assert (neither.duration_s, neither.transfer_s) == (0.0, 0.0)


def test_a_step_swaps_a_block_out_another_in_and_copies_it():
    setup = RunnerSetup()
    setup.write(1, 10.0)
    setup.launch(plan(1, swap_outs=(BlockCopy(1, 2),)))
    setup.write(1, 20.0)
    setup.launch(
        plan(2, swap_outs=(BlockCopy(1, 3),), swap_ins=(BlockCopy(2, 1),), copies=(BlockCopy(1, 4), BlockCopy(1, 5)))
    )
    assert [setup.read(block) for block in (1, 4, 5)] == [10.0, 10.0, 10.0]
    setup.launch(plan(3, swap_ins=(BlockCopy(3, 1),)))
    assert setup.read(1) == 20.0


@pytest.mark.parametrize("seed", range(20))
def test_the_moves_of_a_plan_are_done_in_order(seed: int):
    """Random swap-outs, swap-ins and copies in one step, also chained from one kind to the next."""
    rng = random.Random(seed)
    setup = RunnerSetup(num_blocks=12, num_host_blocks=9)
    device, host = {block: float(block) for block in range(1, 13)}, dict.fromkeys(range(1, 10), 0.0)
    for block, value in device.items():
        setup.write(block, value)
    setup.launch(plan(swap_outs=tuple(BlockCopy(block, block) for block in host)))
    host = {block: device[block] for block in host}
    for step in range(40):
        fresh = rng.sample(sorted(device), 3)
        for block in fresh:  # as a model would write
            device[block] = 100.0 + 10 * step + block
            setup.write(block, device[block])
        moves = {
            "swap_outs": moves_between(rng, device, host),
            "swap_ins": moves_between(rng, host, device),
            "copies": moves_within(rng, device),
        }
        for kind, (source, target) in zip(moves, ((device, host), (host, device), (device, device)), strict=True):
            read = {copy.source: source[copy.source] for copy in moves[kind]}
            target.update({copy.target: read[copy.source] for copy in moves[kind]})
        setup.launch(plan(step, **moves))
        assert {block: setup.read(block) for block in device} == device
    setup.launch(plan(99, swap_ins=tuple(BlockCopy(block, block) for block in host)))
    assert {block: setup.read(block) for block in host} == host


def moves_between(rng: random.Random, source: dict[int, float], target: dict[int, float]) -> tuple[BlockCopy, ...]:
    """Random moves with different targets."""
    targets = rng.sample(sorted(target), rng.randrange(5))
    return tuple(BlockCopy(rng.choice(sorted(source)), block) for block in targets)


def moves_within(rng: random.Random, blocks: dict[int, float]) -> tuple[BlockCopy, ...]:
    """Random copies with different targets that are no sources."""
    ids = rng.sample(sorted(blocks), len(blocks))
    return tuple(BlockCopy(rng.choice(ids[:4]), block) for block in ids[4 : 4 + rng.randrange(6)])
