"""Log-probabilities on the GPU, or in the interpreter, compared with the host sampler."""

from __future__ import annotations

import math
import random

import pytest
import torch

from app.kernels.triton.sampling import logprobs as reporting
from app.kernels.triton.sampling.sample import scratch_width
from tests.cases import long
from tests.kernels.triton.sampling_rows import DEVICE, UNWRITTEN, SampleBatch, start


def reported(batch, tokens, step=4, ring_size=3):
    """The entries of the rings [R, 1 + 20] that the kernels write; all others must be UNWRITTEN."""
    count, width = batch.logits_RV.shape
    values = torch.full((ring_size, count + 2, 21), float(UNWRITTEN), device=DEVICE)
    ids = torch.full((ring_size, count + 2, 21), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    reporting.logprobs(
        batch.logits_RV, torch.tensor(tokens, dtype=torch.int32, device=DEVICE), batch.state_SW, batch.sampled_rows_R,
        scratch_RX=torch.full((count, scratch_width(width)), UNWRITTEN, dtype=torch.int32, device=DEVICE),
        values_ring_KRN=values, ids_ring_KRN=ids, counter=torch.tensor([step], dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    index = step % ring_size
    for ring in (values, ids):
        assert (ring[index, count:] == UNWRITTEN).all()
        assert (torch.cat([ring[:index], ring[index + 1 :]]) == UNWRITTEN).all()
    return values[index, :count].cpu(), ids[index, :count].cpu()


def check(batch, tokens):
    """Compare every row with the host sampler."""
    values_RN, ids_RN = reported(batch, tokens)
    for values, ids, wanted in zip(values_RN, ids_RN, batch.reported(tokens), strict=True):
        if wanted is None:
            assert (values == UNWRITTEN).all() and (ids == UNWRITTEN).all()
            continue
        count = len(wanted.top_token_ids)
        expected = torch.tensor([wanted.logprob, *wanted.top_logprobs])
        torch.testing.assert_close(values[: count + 1], expected, rtol=1e-6, atol=3e-6)
        assert ids[: count + 1].tolist() == [wanted.rank, *wanted.top_token_ids]


def rows_of(*counts):
    """Rows that request these numbers of log-probabilities; -1 requests none."""
    return [start(0, logprobs=count) if count >= 0 else start(0) for count in counts]


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])) * 3


@pytest.mark.parametrize("width", [20, 21, 4096, 4097, 12_345])
def test_logprobs_and_ranks_equal_those_of_the_host_sampler(width):
    rng = random.Random(width)
    logits_RV = noise(6, width)
    tokens = [rng.randrange(width) for _ in range(4)] + [int(logits_RV[4].argmax()), int(logits_RV[5].argmin())]
    check(SampleBatch(logits_RV, rows_of(20, 0, 1, -1, 5, 3)), tokens)


@pytest.mark.parametrize("filling", [long(1), 9, long(512)], ids="{} programs".format)
def test_the_lowest_id_is_first_among_equal_logits(filling, monkeypatch):
    monkeypatch.setattr(reporting, "BLOCK", 128)
    monkeypatch.setattr("app.kernels.triton.rows.FILLING", filling)
    logits_RV = (noise(5, 1000) * 2).round() / 2
    logits_RV[1] = 0.0
    logits_RV[2, 17:] = -4.0
    logits_RV[3] = noise(1000).bfloat16()
    check(SampleBatch(logits_RV, rows_of(20, 20, 20, 20, 7)), [3, 999, 500, 17, 0])


def test_impossible_tokens_have_no_probability():
    logits_RV = noise(6, 300)
    logits_RV[0, 4:] = -math.inf
    logits_RV[1, [9, 40]] = torch.tensor([math.nan, -math.inf])
    logits_RV[2, [9, 40]] = math.inf
    logits_RV[3] = -math.inf
    logits_RV[4] = math.nan
    logits_RV[5] *= 1e37
    check(SampleBatch(logits_RV, rows_of(6, 20, 2, 5, 5, 20)), [2, 3, 9, 7, 7, 1])


def test_a_list_longer_than_the_vocabulary_is_padded():
    values_RN, ids_RN = reported(SampleBatch(noise(1, 3), rows_of(5)), [1])
    assert sorted(ids_RN[0, 1:4].tolist()) == [0, 1, 2]
    assert ids_RN[0, 4:6].tolist() == [-1, -1]
    assert values_RN[0, 4:6].tolist() == [-math.inf] * 2


def test_only_rows_that_request_logprobs_are_written():
    batch = SampleBatch(noise(4, 100), [None, *rows_of(-1, 2), None])
    values_RN, ids_RN = reported(batch, [0, 1, 2, 0])
    assert (values_RN[[0, 1, 3]] == UNWRITTEN).all() and (ids_RN[[0, 1, 3]] == UNWRITTEN).all()
    assert (ids_RN[2, :3] != UNWRITTEN).all() and (ids_RN[2, 3:] == UNWRITTEN).all()


def test_the_ring_index_of_the_step_is_used():
    for step in (0, 2, 3, 2**31 - 3):
        reported(SampleBatch(noise(1, 50), rows_of(2)), [1], step=step)
