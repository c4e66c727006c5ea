"""Who is drawn natively, what the kernels are told of them, and that their tokens are the sampler's."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch

from app.engine.execute.batch import BatchState
from app.engine.execute.draws import MIN_TEMPERATURE, Drawing, DrawTable, is_drawn_on_host
from app.engine.execute.sampler import Sampler
from app.engine.schedule.plan import Chunk, RowStart, SampleRow, StepPlan
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.records import Draw
from app.params import SamplingParams

VOCAB = 300


def start(row: int, choice: int = 0, **params: object) -> RowStart:
    """A row as the scheduler announces it, but for the defaults."""
    return RowStart(row, 10 * row, choice, SamplingParams(**params), (1, 2), ())


def written(given: RowStart) -> Draw:
    """What a table says of a row after it has started."""
    table = DrawTable(given.row + 1)
    table.write(given)
    return Draw.from_buffer_copy(ctypes.string_at(table.address, (given.row + 1) * ctypes.sizeof(Draw)),
                                 given.row * ctypes.sizeof(Draw))  # fmt: skip


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    """The native kernels."""
    found = load_library()
    if found is None:
        pytest.skip("no native kernels here")
    return found


# --- Who -----------------------------------------------------------------------------------------------------------

HOST = [
    {"logit_bias": {3: 1.0}}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1},
    {"min_tokens": 1}, {"use_beam_search": True, "beam_width": 2},
]  # fmt: skip
DEVICE = [
    {}, {"temperature": 0.0}, {"temperature": 0.5, "top_k": 4, "top_p": 0.5, "min_p": 0.1}, {"n": 3}, {"best_of": 3},
    {"logprobs": 4}, {"repetition_penalty": 1.0}, {"stop_token_ids": [4]}, {"ignore_eos": True},
]  # fmt: skip


@pytest.mark.parametrize("params", HOST)
def test_what_the_kernels_cannot_do_is_drawn_on_the_host(params: dict):
    assert is_drawn_on_host(SamplingParams(**params))
    assert written(start(2, **params)).is_on_host


@pytest.mark.parametrize("params", DEVICE)
def test_all_else_is_drawn_by_the_device(params: dict):
    assert not is_drawn_on_host(SamplingParams(**params))
    assert not written(start(2, **params)).is_on_host


# --- What ----------------------------------------------------------------------------------------------------------


def test_a_row_s_entry_says_how_it_draws():
    entry = written(start(5, 3, seed=2**64 - 1, temperature=0.25, top_p=0.5, min_p=0.125, top_k=17))
    assert (entry.seed, entry.choice) == (2**64 - 1, 3)
    assert (entry.temperature, entry.top_p, entry.min_p, entry.top_k) == (0.25, 0.5, 0.125, 17)


def test_what_is_not_given_filters_nothing():
    entry = written(start(1))
    assert (entry.seed, entry.temperature, entry.top_p, entry.min_p, entry.top_k) == (0, 1.0, 1.0, 0.0, 0)
    assert written(start(1, top_k=-1)).top_k == 0


def test_seeds_count_modulo_two_to_the_64():
    assert written(start(1, seed=-1)).seed == 2**64 - 1


def test_only_temperature_zero_is_greedy():
    assert written(start(1, temperature=0.0)).temperature == 0.0
    for temperature in (5e-324, 1e-20, 1e-6):
        assert written(start(1, temperature=temperature)).temperature == pytest.approx(MIN_TEMPERATURE)


def test_a_row_draws_as_its_last_owner_and_the_others_as_theirs():
    batch = BatchState(4, 5, 8, 16)
    for starts in ((start(1, seed=10), start(4, seed=40)), (start(4, seed=41),)):
        batch.apply(StepPlan(1, (), (), (), row_starts=starts))
    entries = (Draw * 5).from_address(batch.buffers.draws.address)
    assert [entry.seed for entry in entries] == [0, 10, 0, 0, 41]


# --- The same tokens as the sampler's ------------------------------------------------------------------------------


def some_params(rng: random.Random) -> dict[str, object]:
    """Any mixture of what the kernels do; now and then what they do not."""
    params: dict[str, object] = {"seed": rng.getrandbits(64), "temperature": rng.choice((0.0, 0.3, 1.0, 2.0))}
    choices = {"top_k": (-1, 1, 9, 400), "top_p": (0.05, 0.6, 0.95), "min_p": (0.0, 0.02, 0.5), "logprobs": (0, 2)}
    params |= {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.4}
    return params | (rng.choice(HOST[:5]) if rng.random() < 0.2 else {})


def step(rng: random.Random, number: int, starts: list[RowStart]) -> StepPlan:
    """Eight sequences with some tokens each; some draw after all of them, some after the last one, some not at all."""
    lengths = [rng.randrange(1, 5) for _ in starts]
    chunks = [
        Chunk(each.row, each.sequence_id, 2 + 5 * number, tuple(range(length)))
        for each, length in zip(starts, lengths, strict=True)
    ]
    logit_rows: list[int] = []
    sampled: list[SampleRow] = []
    for index, each in enumerate(starts):
        end, count = sum(lengths[: index + 1]), rng.choice((0, 1, lengths[index]))
        logit_rows += range(end - count, end)
        sampled += [SampleRow(each.row, each.sequence_id)] * count
    return StepPlan(number, tuple(chunks), tuple(logit_rows), tuple(sampled))


@pytest.mark.parametrize("seed", range(5))
def test_what_the_device_draws_is_what_the_sampler_would_have_drawn(library: NativeLibrary, seed: int):
    """Over several steps, token for token and with the same log-probabilities, penalties and all."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch = BatchState(64, 40, 64, 16)
    buffers = batch.buffers
    logits_RV = torch.zeros(64, VOCAB)
    drawing = Drawing(logits_RV, buffers.logit_rows_R, buffers.draw_rows_R, buffers.positions_T, buffers.draws)
    starts = [start(row, rng.randrange(2), **some_params(rng)) for row in rng.sample(range(1, 65), 8)]
    batch.apply(StepPlan(0, (), (), (), row_starts=tuple(starts)))
    assisted, alone = Sampler((3,)), Sampler((3,))
    for each in starts:
        assisted.start(each)
        alone.start(each)
    for number in range(20):
        plan = step(rng, number, starts)
        inputs = batch.apply(plan)
        logits_RV[:] = torch.randn(64, VOCAB, generator=generator) * 2
        library.run(drawing.step.code, drawing.step.fields, inputs.num_logit_rows, 2)
        drawers = [row for row, _ in plan.sampled]
        positions = batch.drawn_positions(plan)
        drawn = drawing.drawn(len(drawers))
        on_host = {each.row for each in starts if is_drawn_on_host(each.params)}
        assert [token < 0 for token in drawn] == [row in on_host for row in drawers]
        expected = alone.sample(logits_RV, drawers, positions) if drawers else []
        assert assisted.sample(logits_RV, drawers, positions, drawn) == expected
