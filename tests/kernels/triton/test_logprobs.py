"""Log-probabilities on the GPU, or in the interpreter, against the CPU's sampler."""

from __future__ import annotations

import math
import random

import pytest
import torch

from app.kernels.triton import logprobs as reporting
from app.kernels.triton.sample import scratch_width
from tests.kernels.triton.sampling_rows import DEVICE, WILD, Draws, start

# The interpreter's `range` makes numbers of arrays of one element, and it warns of what overflows to infinity.


def reported(batch, tokens, step=4, places=3):
    """What the kernels write to the rings [R, 1 + 20], all else WILD."""
    count, width = batch.logits_RV.shape
    values = torch.full((places, count + 2, 21), float(WILD), device=DEVICE)
    ids = torch.full((places, count + 2, 21), WILD, dtype=torch.int32, device=DEVICE)
    reporting.logprobs(
        batch.logits_RV, torch.tensor(tokens, dtype=torch.int32, device=DEVICE), batch.state_SW, batch.draw_rows_R,
        scratch_RX=torch.full((count, scratch_width(width)), WILD, dtype=torch.int32, device=DEVICE),
        values_ring_KRN=values, ids_ring_KRN=ids, counter=torch.tensor([step], dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    place = step % places
    for ring in (values, ids):
        assert (ring[place, count:] == WILD).all()
        assert (torch.cat([ring[:place], ring[place + 1 :]]) == WILD).all()
    return values[place, :count].cpu(), ids[place, :count].cpu()


def check(batch, tokens):
    """Compare every row with the CPU's."""
    values_RN, ids_RN = reported(batch, tokens)
    for values, ids, wanted in zip(values_RN, ids_RN, batch.reported(tokens), strict=True):
        if wanted is None:
            assert (values == WILD).all() and (ids == WILD).all()
            continue
        count = len(wanted.top_token_ids)
        expected = torch.tensor([wanted.logprob, *wanted.top_logprobs])
        torch.testing.assert_close(values[: count + 1], expected, rtol=1e-6, atol=3e-6)
        assert ids[: count + 1].tolist() == [wanted.rank, *wanted.top_token_ids]


def rows_of(*counts):
    """Rows that want so many."""
    return [start(0, logprobs=count) if count >= 0 else start(0) for count in counts]


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])) * 3


@pytest.mark.parametrize("width", [20, 21, 4096, 4097, 12_345])
def test_log_probabilities_and_ranks_are_the_cpu_s(width):
    rng = random.Random(width)
    logits_RV = noise(6, width)
    tokens = [rng.randrange(width) for _ in range(4)] + [int(logits_RV[4].argmax()), int(logits_RV[5].argmin())]
    check(Draws(logits_RV, rows_of(20, 0, 1, -1, 5, 3)), tokens)


@pytest.mark.parametrize("filling", [1, 9, 512], ids="{} programs".format)
def test_the_lowest_id_comes_first_among_equals(filling, monkeypatch):
    monkeypatch.setattr(reporting, "BLOCK", 128)
    monkeypatch.setattr("app.kernels.triton.rows.FILLING", filling)
    logits_RV = (noise(5, 1000) * 2).round() / 2
    logits_RV[1] = 0.0
    logits_RV[2, 17:] = -4.0
    logits_RV[3] = noise(1000).bfloat16()
    check(Draws(logits_RV, rows_of(20, 20, 20, 20, 7)), [3, 999, 500, 17, 0])


def test_what_cannot_be_drawn_has_no_probability_and_breaks_nothing():
    logits_RV = noise(6, 300)
    logits_RV[0, 4:] = -math.inf
    logits_RV[1, [9, 40]] = torch.tensor([math.nan, -math.inf])
    logits_RV[2, [9, 40]] = math.inf
    logits_RV[3] = -math.inf
    logits_RV[4] = math.nan
    logits_RV[5] *= 1e37
    check(Draws(logits_RV, rows_of(6, 20, 2, 5, 5, 20)), [2, 3, 9, 7, 7, 1])


def test_fewer_tokens_than_wanted_end_the_list():
    values_RN, ids_RN = reported(Draws(noise(1, 3), rows_of(5)), [1])
    assert sorted(ids_RN[0, 1:4].tolist()) == [0, 1, 2]
    assert ids_RN[0, 4:6].tolist() == [-1, -1]
    assert values_RN[0, 4:6].tolist() == [-math.inf] * 2


def test_only_rows_that_ask_are_reported():
    batch = Draws(noise(4, 100), [None, *rows_of(-1, 2), None])
    values_RN, ids_RN = reported(batch, [0, 1, 2, 0])
    assert (values_RN[[0, 1, 3]] == WILD).all() and (ids_RN[[0, 1, 3]] == WILD).all()
    assert (ids_RN[2, :3] != WILD).all() and (ids_RN[2, 3:] == WILD).all()


def test_the_step_s_place_in_the_rings_is_used():
    for step in (0, 2, 3, 2**31 - 3):
        reported(Draws(noise(1, 50), rows_of(2)), [1], step=step)
