"""Masks in the native sampler: the tokens of the host sampler, and -2 where nothing is left."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from app.engine.execute.host_sampler import Sampler
from app.engine.schedule.step_plan import NO_ALLOWED_TOKEN, NO_TOKEN
from app.kernels.cpu.library import NativeLibrary
from tests.kernels.cpu.sampling import Batch, RowParams
from tests.kernels.cpu.test_sample import random_batch, score


def random_mask(rng: random.Random, width: int) -> Tensor | None:
    """No mask, no token, one, some, the tail of a block, whole blocks, or all."""
    kind = rng.randrange(7)
    if kind == 0:
        return None
    allowed_V = torch.zeros(width, dtype=torch.bool)
    if kind == 2:
        allowed_V[rng.randrange(width)] = True
    elif kind == 3:
        allowed_V[torch.rand(width, generator=torch.Generator().manual_seed(rng.getrandbits(30))) < 0.1] = True
    elif kind == 4:
        allowed_V[-rng.choice((1, 3, 65)) :] = True
    elif kind == 5:
        allowed_V[64 * rng.randrange(1 + width // 64) :][:64] = True
    elif kind == 6:
        allowed_V[:] = True
    return allowed_V


def expected(batch: Batch) -> list[int]:
    """The tokens of the host sampler under the same masks."""
    sampler = Sampler(())
    for row, each in enumerate(batch.params):
        sampler.start(each.start(row))
    positions = [position + 1 for position in batch.positions]
    rows = range(len(batch.params))
    # An earlier token of -1 means that the host samples: all of them.
    left = [NO_TOKEN] * len(batch.params)
    sampled = sampler.sample(batch.logits_RV, rows, positions, left, lambda index: batch.allowed[index])
    return [token for token, _ in sampled]


def test_masked_tokens_are_those_of_the_host_sampler(library: NativeLibrary):
    """For all parameters and widths around a block; ties within rounding less than once in a thousand."""
    rng = random.Random(library.instruction_set + "masks")
    num_rows = num_ties = num_left_without = 0
    for _ in range(300):
        batch = random_batch(rng)
        batch.allowed = [random_mask(rng, batch.logits_RV.shape[1]) for _ in batch.params]
        num_rows += len(batch.params)
        sampled = batch.sample(library, num_threads=2)
        for row, (token, other) in enumerate(zip(sampled, expected(batch), strict=True)):
            allowed_V = batch.allowed[row]
            assert token < 0 or allowed_V is None or allowed_V[token], "a token that the mask forbids"
            num_left_without += token == NO_ALLOWED_TOKEN
            if token != other:
                assert token >= 0 and other >= 0, (token, other)
                scored = (batch.logits_RV[row], batch.params[row], batch.positions[row] + 1)
                assert score(*scored, token) == pytest.approx(score(*scored, other), rel=1e-6, abs=1e-5)
                num_ties += 1
    assert num_ties < num_rows / 1000 and num_left_without > 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_numbers_is_told_from_one_whose_mask_leaves_none(library: NativeLibrary, temperature: float):
    logits_RV = torch.full((3, 100), -math.inf)
    logits_RV[1:, 7] = 1.0
    only = torch.zeros(100, dtype=torch.bool)
    only[8] = True
    batch = Batch(logits_RV, [RowParams(temperature)] * 3, [0] * 3, allowed=[only, only, None])
    assert batch.sample(library) == [NO_TOKEN, NO_ALLOWED_TOKEN, 7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_mask_comes_after_penalties_and_before_the_filters(library: NativeLibrary, temperature: float):
    """The best token is forbidden: top-k 1 takes the best of the others."""
    logits_RV = torch.arange(200.0)[None]
    allowed_V = torch.arange(200) < 150
    batch = Batch(logits_RV, [RowParams(temperature, top_k=1)], [0], allowed=[allowed_V])
    assert batch.sample(library) == [149]


def test_log_probabilities_are_those_of_the_raw_logits(library: NativeLibrary):
    logits_RV = torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    only = torch.zeros(300, dtype=torch.bool)
    only[int(logits_RV.argmin())] = True
    batch = Batch(logits_RV, [RowParams(num_logprobs=2)], [0], allowed=[only])
    [token] = batch.sample(library)
    assert token == int(logits_RV.argmin())
    assert float(batch.logprobs_RX[0, 0]) == pytest.approx(float(torch.log_softmax(logits_RV[0], 0)[token]), abs=1e-5)
    assert int(batch.logprob_ids_RX[0, 0]) == 300 and int(batch.logprob_ids_RX[0, 1]) == int(logits_RV.argmax())
