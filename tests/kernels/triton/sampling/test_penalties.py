"""Biases, penalties and minimum lengths on the GPU, or in the interpreter, compared with the host sampler."""

from __future__ import annotations

import math
import random

import pytest
import torch

from app.engine.execute.host_sampler import SamplingRow
from app.engine.execute.masks import MaskBuffers
from app.kernels.triton.sampling import penalties
from tests.cases import long
from tests.kernels.cpu.sampling import write_mask
from tests.kernels.triton.sampling_rows import EOS, UNWRITTEN, SampleBatch, start


def adjusted(batch, allowed=None):
    """The logits that the kernel writes; UNWRITTEN where it writes nothing. `allowed`: the masks of the rows."""
    before = batch.logits_RV.clone()
    out = torch.full_like(batch.logits_RV, float(UNWRITTEN))
    state_SW, *rows = batch.inputs
    count, width = batch.logits_RV.shape
    masks = MaskBuffers.allocate(count, width)
    masks.masks_RW[:] = UNWRITTEN
    for index, allowed_V in enumerate(allowed or ()):
        if allowed_V is not None:
            write_mask(masks, count - 1 - index, allowed_V)
            masks.rows_R[index] = count - index
    on_device = (masks.masks_RW.to(out.device), masks.rows_R.to(out.device))
    penalties.apply_penalties(batch.logits_RV, state_SW, batch.seen_SV, *on_device, *rows, out=out)
    assert torch.equal(batch.logits_RV.isnan(), before.isnan())
    assert torch.equal(batch.logits_RV.nan_to_num(7.0), before.nan_to_num(7.0))
    return out.cpu()


def check(batch, allowed=None):
    """Compare every row with the host sampler."""
    for index, (given, values_V) in enumerate(zip(batch.starts, adjusted(batch, allowed), strict=True)):
        assert given is not None
        raw_V, position = batch.logits_RV[index].cpu(), batch.positions[index] + 1
        expected_V = SamplingRow(given, EOS).adjusted(raw_V, position, allowed[index] if allowed else None)
        assert not values_V.isnan().any()
        torch.testing.assert_close(values_V, expected_V, rtol=3e-7, atol=3e-7)


def noise(*shape, scale=3.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])) * scale


ADJUSTMENTS = [
    {"logit_bias": {3: 100.0, 0: -100.0, 8: 0.5}},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.8},
    {"frequency_penalty": -1.1},
    {"min_tokens": 4},
    {"min_tokens": 3, "stop_token_ids": [2, 8, 4]},
    {"min_tokens": 4, "stop_token_ids": [2], "logit_bias": {2: 50.0, 5: 1.0}, "repetition_penalty": 1.2},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 10.0, "logit_bias": {5: 3.0, 9: -3.0}},
]


@pytest.mark.parametrize("width", [10, 700, 4097])
def test_every_penalty_equals_that_of_the_host_sampler(width):
    starts = [start(0, prompt=(5, 6, 5, width - 1), output=(9, 6, 9), **params) for params in ADJUSTMENTS]
    check(SampleBatch(noise(len(starts), width), starts))


@pytest.mark.parametrize("filling", [long(1), 9, long(512)], ids="{} programs".format)
def test_biases_and_stop_tokens_of_every_block_are_applied(filling, monkeypatch):
    monkeypatch.setattr(penalties, "BLOCK", 128)
    monkeypatch.setattr("app.kernels.triton.rows.FILLING", filling)
    rng = random.Random(0)
    starts = []
    for _ in range(8):
        biases = {token: rng.uniform(-100, 100) for token in rng.sample(range(1000), 300)}
        output = rng.choices(range(1000), k=400)
        stops = rng.sample(range(1000), 64)
        starts.append(
            start(0, prompt=rng.choices(range(1000), k=200), output=output, logit_bias=biases, stop_token_ids=stops,
                  min_tokens=rng.choice((0, 400, 401)), frequency_penalty=rng.choice((0.0, 0.3)),
                  repetition_penalty=rng.choice((1.0, 1.1)))
        )  # fmt: skip
    check(SampleBatch(noise(8, 1000), starts))


def test_the_minimum_length_counts_from_the_sampled_token():
    starts = [start(0, prompt=range(2, 9), min_tokens=3)] * 5
    batch = SampleBatch(torch.zeros(5, 20), starts, [6, 7, 8, 9, 10])
    assert adjusted(batch)[:, EOS[0]].tolist() == [-math.inf, -math.inf, -math.inf, 0.0, 0.0]
    check(batch)


@pytest.mark.parametrize("width", [10, 63, 64, 65, 4100])
def test_masks_forbid_tokens_after_every_penalty(width):
    """Of a row with penalties and a bias, of one without, of one whose draw has no mask, and of one with no bit."""
    given = {"logit_bias": {3: 9.0, 0: -9.0}, "frequency_penalty": 0.5, "has_masks": True}
    starts = [start(0, output=(1, 3), **given), *(start(0, has_masks=True) for _ in range(3))]
    some = torch.rand(width, generator=torch.Generator().manual_seed(width)) < 0.3
    check(SampleBatch(noise(4, width), starts), [some, ~some, None, torch.zeros(width, dtype=torch.bool)])


def test_nan_is_impossible_and_infinity_is_the_largest_number():
    logits_RV = noise(3, 300)
    logits_RV[:, [5, 9, 50]] = torch.tensor([math.nan, math.inf, -math.inf])
    logits_RV[1, :] = torch.tensor([math.inf, -math.inf, math.nan]).repeat(100)
    cases = ({"repetition_penalty": 2.0}, {"logit_bias": {5: 1.0, 9: -1.0, 50: 9.0}}, {"min_tokens": 9})
    check(SampleBatch(logits_RV, [start(0, output=(5, 9, 50), **params) for params in cases]))


def test_rows_without_penalties_are_not_written():
    cases = ({}, {"temperature": 1.0, "top_k": 3, "logprobs": 2})
    batch = SampleBatch(noise(3, 500), [*(start(0, **params) for params in cases), None])
    assert (adjusted(batch) == UNWRITTEN).all()


def test_each_row_has_its_own_counts():
    starts = [start(0, prompt=(7,), output=(row,), presence_penalty=1.0) for row in range(6)]
    batch = SampleBatch(torch.zeros(6, 10), starts)
    assert (adjusted(batch) == -torch.eye(6, 10)).all()
