"""The kernel's log-probabilities compared with the log-softmax in float64, and broken logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from app.kernels.cpu.library import NativeLibrary
from tests.kernels.cpu.sampling import Batch, RowParams


def sample_with_logprobs(
    library: NativeLibrary, logits_RV: Tensor, count: int, num_threads: int = 1
) -> tuple[list, Tensor, Tensor]:
    """The tokens of all rows, their log-probabilities, and the ids of these."""
    num_rows = len(logits_RV)
    params = [RowParams(seed=row, temperature=2.0, top_k=9, num_logprobs=count) for row in range(num_rows)]
    batch = Batch(logits_RV, params, list(range(num_rows)))
    return batch.sample(library, num_threads), batch.logprobs_RX, batch.logprob_ids_RX


@pytest.mark.parametrize("width", [20, 64, 307, 4099, 151_936])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(library: NativeLibrary, width: int, count: int):
    """For smooth logits, ties and impossible tokens; memory after the requested ones is not written."""
    logits_RV = torch.randn(4, width, generator=torch.Generator().manual_seed(width)) * 4
    logits_RV[1] = (logits_RV[1] * 2).round()
    logits_RV[2, 11:] = -math.inf
    logits_RV[3] = torch.linspace(-30, 0, width)  # each is larger than all before it
    tokens, values_RX, ids_RX = sample_with_logprobs(library, logits_RV, count)
    exact_RV = torch.log_softmax(logits_RV.double(), dim=-1)
    for row, token in enumerate(tokens):
        order = np.argsort(-logits_RV[row].numpy(), kind="stable")[:count]
        assert ids_RX[row, 0] == int((logits_RV[row] > logits_RV[row, token]).sum()) + 1
        assert ids_RX[row, 1 : 1 + count].tolist() == order.tolist()
        wanted = [float(exact_RV[row, token]), *exact_RV[row, order].tolist()]
        assert values_RX[row, : 1 + count].tolist() == pytest.approx(wanted, abs=1e-6, rel=1e-6)
        assert (ids_RX[row, 1 + count :] == -7).all() and values_RX[row, 1 + count :].isnan().all()


def test_a_vocabulary_smaller_than_the_list_leaves_the_rest_empty(library: NativeLibrary):
    _, values_RX, ids_RX = sample_with_logprobs(library, torch.zeros(1, 3), 5)
    assert ids_RX[0, :6].tolist() == [1, 0, 1, 2, -1, -1]
    assert values_RX[0, :6].tolist() == pytest.approx([*[-math.log(3)] * 4, -math.inf, -math.inf], abs=1e-6)


def test_nothing_is_written_for_rows_without_logprobs(library: NativeLibrary):
    _, values_RX, ids_RX = sample_with_logprobs(library, torch.zeros(2, 100), -1)
    assert (ids_RX == -7).all() and values_RX.isnan().all()


@pytest.mark.parametrize("broken", [[0], [0, 8, 99], list(range(100))], ids=len)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logprobs_of_broken_logits_are_numbers_and_complete(library: NativeLibrary, value: float, broken: list[int]):
    logits_V = torch.randn(100, generator=torch.Generator().manual_seed(6))
    logits_V[broken] = value
    tokens, values_RX, ids_RX = sample_with_logprobs(library, logits_V[None], 5)
    if len(broken) == 100 and value != math.inf:  # no token is possible: the request fails, and nothing is written
        assert tokens == [-1] and (ids_RX == -7).all() and values_RX.isnan().all()
        return
    assert not values_RX[0, :6].isnan().any()
    assert len(set(ids_RX[0, 1:6].tolist())) == 5
    assert ids_RX[0, 1:6].min() >= 0


def test_logprobs_depend_neither_on_the_batch_nor_on_threads(library: NativeLibrary):
    logits_RV = torch.randn(7, 4099, generator=torch.Generator().manual_seed(3)) * 3
    tokens, values_RX, ids_RX = sample_with_logprobs(library, logits_RV, 20)
    for num_threads in (2, 3, 8):
        again = sample_with_logprobs(library, logits_RV, 20, num_threads)
        assert again[0] == tokens and torch.equal(again[1], values_RX) and torch.equal(again[2], ids_RX)
    alone = Batch(logits_RV[4:5], [RowParams(seed=4, temperature=2.0, top_k=9, num_logprobs=20)], [4])
    assert alone.sample(library) == tokens[4:5]
    assert torch.equal(alone.logprobs_RX[0], values_RX[4])
