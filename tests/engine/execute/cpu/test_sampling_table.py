"""Which rows the kernels sample, and the parameters that they read; test_sampled_tokens.py checks their tokens."""

from __future__ import annotations

import ctypes

import pytest

from app.contract.sampling_params import SamplingParams
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.cpu.sampling_table import SamplingTable
from app.engine.schedule.row_sampling import MIN_TEMPERATURE, RowSampling
from app.engine.schedule.step_plan import Chunks, RowStart, StepPlan
from app.kernels.cpu.records import SamplingSettings


def start(row: int, choice: int = 0, **params: object) -> RowStart:
    """The start of a row as the scheduler plans it, without the defaults of admission."""
    return RowStart(row, 10 * row, choice, RowSampling.of(SamplingParams(**params)), (1, 2), ())


def written(given: RowStart) -> SamplingSettings:
    """The entry of a row in a table after it has started."""
    table = SamplingTable(given.row + 1)
    table.write(given)
    size = ctypes.sizeof(SamplingSettings)
    return SamplingSettings.from_buffer_copy(ctypes.string_at(table.address, (given.row + 1) * size), given.row * size)


# --- Host or device-------------------------------------------------------------------------------------------------

HOST = [{"use_beam_search": True, "beam_width": 2}, {"use_beam_search": True, "min_tokens": 3}]
CHANGING_LOGITS = [
    {"logit_bias": {3: 1.0}}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1},
    {"min_tokens": 1},
]  # fmt: skip
DEVICE = [
    {}, {"temperature": 0.0}, {"temperature": 0.5, "top_k": 4, "top_p": 0.5, "min_p": 0.1}, {"n": 3}, {"best_of": 3},
    {"logprobs": 4}, {"repetition_penalty": 1.0}, {"stop_token_ids": [4]}, {"ignore_eos": True}, *CHANGING_LOGITS,
]  # fmt: skip


@pytest.mark.parametrize("params", HOST)
def test_beams_are_sampled_on_the_host(params: dict):
    assert written(start(2, **params)).is_on_host


@pytest.mark.parametrize("params", DEVICE)
def test_all_other_rows_are_sampled_on_the_device(params: dict):
    assert not written(start(2, **params)).is_on_host


def test_only_parameters_that_change_logits_have_adjustments():
    assert all(written(start(2, **params)).penalties for params in CHANGING_LOGITS)
    assert not any(written(start(2, **params)).penalties for params in (*DEVICE[: -len(CHANGING_LOGITS)], *HOST))


# --- Parameters ----------------------------------------------------------------------------------------------------


def test_the_entry_of_a_row_has_its_sampling_parameters():
    entry = written(start(5, 3, seed=2**64 - 1, temperature=0.25, top_p=0.5, min_p=0.125, top_k=17))
    assert (entry.seed, entry.choice) == (2**64 - 1, 3)
    assert (entry.temperature, entry.top_p, entry.min_p, entry.top_k) == (0.25, 0.5, 0.125, 17)


def test_parameters_that_are_not_given_filter_nothing():
    entry = written(start(1))
    assert (entry.seed, entry.temperature, entry.top_p, entry.min_p, entry.top_k) == (0, 1.0, 1.0, 0.0, 0)
    assert written(start(1, top_k=-1)).top_k == 0


def test_seeds_are_modulo_two_to_the_64():
    assert written(start(1, seed=-1)).seed == 2**64 - 1


def test_only_temperature_zero_is_greedy():
    assert written(start(1, temperature=0.0)).temperature == 0.0
    for temperature in (5e-324, 1e-20, 1e-6):
        assert written(start(1, temperature=temperature)).temperature == pytest.approx(MIN_TEMPERATURE)


def test_each_row_has_the_parameters_of_its_last_sequence():
    batch = BatchState(4, 5, 8, 16)
    for starts in ((start(1, seed=10), start(4, seed=40)), (start(4, seed=41),)):
        batch.apply(StepPlan(1, Chunks(), (), (), row_starts=starts))
    entries = (SamplingSettings * 5).from_address(batch.buffers.sampling.address)
    assert [entry.seed for entry in entries] == [0, 10, 0, 0, 41]


def test_the_number_of_logprobs_is_kept_until_the_row_is_released():
    batch = BatchState(4, 5, 8, 16)
    starts = (start(1, logprobs=4), start(2), start(3, best_of=2), start(4, use_beam_search=True))
    batch.apply(StepPlan(1, Chunks(), (), (), row_starts=starts))
    assert batch.buffers.sampling.num_logprobs == {1: 4, 3: 0}
    batch.apply(StepPlan(2, Chunks(), (), (), released_rows=(3, 1), row_starts=(start(1),)))
    assert batch.buffers.sampling.num_logprobs == {}
