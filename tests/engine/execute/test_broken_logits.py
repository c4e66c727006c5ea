"""What the sampler makes of logits that are not numbers, or are infinite."""

from __future__ import annotations

import math

import pytest
import torch

from app.engine.schedule.step_plan import NO_TOKEN
from tests.engine.execute.test_host_sampler import VOCAB, logits_of, sample_one, sampler, start


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5},
                                    {"top_k": 3, "top_p": 0.5, "min_p": 0.5, "logprobs": 4}])  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_logits_give_a_token_if_any_of_them_can_be_chosen(params: dict, value: float):
    everywhere = torch.full((VOCAB,), value)
    token_id = sample_one(everywhere, start(**params))
    assert 0 <= token_id < VOCAB if value > 0 else token_id == NO_TOKEN
    everywhere[VOCAB - 1] = -3.0
    assert 0 <= sample_one(everywhere, start(**params)) < VOCAB


def test_without_a_token_there_are_no_logprobs_and_nothing_is_counted():
    made = sampler(start(presence_penalty=1.0, logprobs=4))
    assert made.sample(torch.full((1, VOCAB), math.nan), [1]) == [(NO_TOKEN, None)]
    ((token_id, found),) = made.sample(logits_of(6)[None], [1])
    assert token_id != NO_TOKEN and len(found.top_token_ids) == 4


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 0, "presence_penalty": 1.0}, {}, {"top_p": 0.9}]
)
def test_a_nan_logit_is_never_sampled(params: dict):
    logits_V = logits_of(6)
    expected = int(logits_V.argmax())
    logits_V[[0, 8, VOCAB - 1]] = float("nan")
    assert expected not in (0, 8, VOCAB - 1)
    assert sample_one(logits_V, start(**params)) not in (0, 8, VOCAB - 1)


@pytest.mark.parametrize("broken", [[0], [0, 8, VOCAB - 1], list(range(VOCAB - 1))], ids=len)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logprobs_of_broken_logits_are_numbers_and_complete(value: float, broken: list[int]):
    logits_V = logits_of(6)
    logits_V[broken] = value
    (token_id, found), = sampler(start(temperature=0, logprobs=5)).sample(logits_V[None], [1])  # fmt: skip
    assert len(set(found.top_token_ids)) == 5 and found.top_token_ids[0] == token_id
    assert not any(math.isnan(logprob) for logprob in (found.logprob, *found.top_logprobs))
