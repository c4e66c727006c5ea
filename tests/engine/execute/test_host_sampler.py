"""The sampler compared with a plain second implementation, and its guarantees."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import SamplingParams
from app.engine.execute.host_sampler import Sampler, SamplingRow, _candidates
from app.engine.execute.noise import gumbel, noise_bits
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart
from tests.cases import examples

VOCAB = 60
EOS = (1,)


def start(
    row: int = 1, prompt: Sequence[int] = (5, 6), output: Sequence[int] = (), choice: int = 0, **params: object
) -> RowStart:
    """The start of a row as the scheduler plans it, with all parameters set as by admission."""
    given = SamplingParams(**{"seed": 0, "max_tokens": 1000, **params}).with_defaults(SamplingDefaults())
    return RowStart(row, row, choice, RowSampling.of(given), tuple(prompt), tuple(output))


class ConsecutiveSampler(Sampler):
    """A sampler whose rows sample consecutive positions by default."""

    def __init__(self) -> None:
        super().__init__(EOS)
        self.next: dict[int, int] = {}

    def start(self, start: RowStart) -> None:
        super().start(start)
        self.next[start.row] = len(start.prompt_token_ids) + len(start.output_token_ids)

    def sample(self, logits_RV: Tensor, rows: Sequence[int], positions: Sequence[int] = ()) -> list:
        samples = super().sample(logits_RV, rows, positions or [self.next[row] for row in rows])
        for row in rows:
            self.next[row] += 1
        return samples


def sampler(*starts: RowStart) -> ConsecutiveSampler:
    """A sampler with these rows."""
    created = ConsecutiveSampler()
    for each in starts:
        created.start(each)
    return created


def sample_one(logits_V: Tensor, given: RowStart) -> int:
    """Sample one token for one new row."""
    return sampler(given).sample(logits_V[None].clone(), [given.row])[0][0]


def logits_of(seed: int) -> Tensor:
    """Random logits, rounded so that there are ties."""
    return (smooth_logits_of(seed) * 4).round() / 4


def smooth_logits_of(seed: int) -> Tensor:
    """Random logits without ties."""
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


# --- An independent sampler: float64, sorted lists, one token at a time ----------------------------------------


def exact_samples(logits_V: Tensor, given: RowStart) -> set[int]:
    """The tokens that an exact sampler may sample (several only if rounding decides between them)."""
    sampling, scores = given.sampling, [float(value) for value in logits_V]
    apply_penalties(scores, given)
    if sampling.temperature == 0:
        return {max(range(VOCAB), key=lambda token: (scores[token], -token))}
    scores = [score / sampling.temperature for score in scores]
    kept = keep(scores, sampling)
    position = len(given.prompt_token_ids) + len(given.output_token_ids)
    noise = gumbel(noise_bits(sampling.seed, 0, position, np.arange(VOCAB, dtype=np.uint32)))
    total = {token: scores[token] + float(noise[token]) for token in kept}
    best = max(total.values())
    return {token for token, value in total.items() if value > best - 1e-4}


def apply_penalties(scores: list[float], given: RowStart) -> None:
    """Bias, repetition, presence, frequency; stop tokens before the minimum length are impossible."""
    sampling, output = given.sampling, list(given.output_token_ids)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    for token in {*given.prompt_token_ids, *output}:
        penalty = sampling.repetition
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(output):
        scores[token] -= sampling.presence + sampling.frequency * output.count(token)
    if len(output) < sampling.min_tokens:
        for token in {*EOS, *sampling.stop_token_ids}:
            scores[token] = -math.inf


def keep(scores: list[float], sampling: RowSampling) -> set[int]:
    """Top-k, then top-p of the rest, then min-p; tokens equal to the last kept one are kept."""
    kept = set(range(VOCAB))
    if sampling.top_k > 0:
        kept = {token for token in kept if scores[token] >= sorted(scores)[-sampling.top_k]}
    if sampling.top_p < 1:
        weights = {token: math.exp(scores[token] - max(scores)) for token in kept}
        total, reached, threshold = sum(weights.values()), 0.0, -math.inf
        for token in sorted(kept, key=lambda token: -scores[token]):
            reached, threshold = reached + weights[token] / total, scores[token]
            if reached >= sampling.top_p:
                break
        kept = {token for token in kept if scores[token] >= threshold}
    if sampling.min_p > 0:
        kept = {token for token in kept if math.exp(scores[token] - max(scores)) >= sampling.min_p}
    return kept


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, 0, 1, 3, 20, VOCAB]),
        "top_p": st.sampled_from([0.011, 0.31, 0.71, 0.93]),  # no sum of weights is close to these
        "min_p": st.sampled_from([0.013, 0.11, 1.0]),
        "presence_penalty": st.sampled_from([-1.5, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.7]),
        "repetition_penalty": st.sampled_from([0.6, 1.3, 2.0]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.5, 100.0])),
        "min_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=3),
        "seed": st.integers(0, 2**64 - 1),
    },
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@settings(max_examples=examples(400))
@given(PARAMS, st.integers(0, 10**6), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), TOKENS)
def test_a_sample_is_that_of_the_contract(params: dict, seed: int, prompt: list[int], output: list[int]):
    given_row = start(prompt=prompt, output=output, **params)
    logits_V = smooth_logits_of(seed)
    assert sample_one(logits_V, given_row) in exact_samples(logits_V, given_row)


# --- One rule each ---------------------------------------------------------------------------------------------


def test_greedy_samples_the_lowest_id_of_equal_logits():
    logits_V = torch.zeros(VOCAB)
    logits_V[[7, 9, 30]] = 2.0
    assert sample_one(logits_V, start(temperature=0)) == 7
    assert sample_one(logits_V, start(temperature=0, presence_penalty=0.1)) == 7, "also with penalties"


def test_temperature_zero_ignores_filters_and_seed():
    logits_V = logits_of(3)
    assert len({sample_one(logits_V, start(temperature=0, seed=seed, top_p=0.5, top_k=9)) for seed in range(20)}) == 1


def test_top_p_zero_leaves_the_most_likely_token():
    logits_V = logits_of(3)
    best = sample_one(logits_V, start(temperature=0))
    assert {sample_one(logits_V, start(temperature=1, seed=seed, top_p=0)) for seed in range(20)} == {best}


def test_repetition_penalty_counts_the_prompt_and_presence_does_not():
    logits_V = torch.zeros(VOCAB)
    logits_V[5], logits_V[8] = 3.0, 2.0
    assert sample_one(logits_V, start(temperature=0, prompt=[5], repetition_penalty=2.0)) == 8
    assert sample_one(logits_V, start(temperature=0, prompt=[5], presence_penalty=2.0)) == 5
    assert sample_one(logits_V, start(temperature=0, prompt=[9], output=[5], presence_penalty=2.0)) == 8


def test_sampled_tokens_count_for_the_penalties_of_later_steps():
    logits_RV = torch.zeros(8, VOCAB)
    logits_RV[0, [4, 9, 20]] = torch.tensor([3.0, 2.0, 1.1])
    row = sampler(start(temperature=0, frequency_penalty=0.5))
    assert [row.sample(logits_RV, [1])[0][0] for _ in range(8)] == [4, 4, 4, 9, 4, 9, 20, 4]


def test_stop_tokens_are_impossible_before_the_minimum_length():
    logits_RV = torch.zeros(8, VOCAB)
    logits_RV[0, [1, 2, 3]] = torch.tensor([9.0, 8.0, 7.0])
    for temperature in (0.0, 0.01):
        row = sampler(start(temperature=temperature, min_tokens=2, stop_token_ids=[2], logit_bias={1: 100.0}))
        assert [row.sample(logits_RV, [1])[0][0] for _ in range(3)] == [3, 3, 1]


def test_a_restarted_row_continues_with_the_same_samples():
    """After a preemption the row starts with prompt and output: penalties, minimum length and noise continue."""
    params = {"temperature": 0.8, "frequency_penalty": 0.9, "repetition_penalty": 1.1, "min_tokens": 6, "seed": 3}
    steps = [logits_of(step)[None] for step in range(12)]
    uninterrupted = sampler(start(**params))
    output = [uninterrupted.sample(logits_RV, [1])[0][0] for logits_RV in steps]
    for cut in range(1, 12):
        again = sampler(start(row=4, output=output[:cut], **params))
        assert [again.sample(logits_RV, [4])[0][0] for logits_RV in steps[cut:]] == output[cut:]


def test_a_sample_does_not_depend_on_other_rows():
    rng = random.Random(0)
    temperatures = [0.0, 0.7, 1.0, 1.3]
    starts = [
        start(row=row, seed=row, temperature=temperatures[row % 4], top_p=0.9, top_k=row, logprobs=row % 4)
        for row in range(1, 20)
    ]
    logits = {row: logits_of(row) for row in range(1, 20)}
    alone = {each.row: sampler(each).sample(logits[each.row][None], [each.row])[0] for each in starts}
    for _ in range(10):
        rows = rng.sample(range(1, 20), k=rng.randrange(1, 19))
        padded = torch.cat([torch.stack([logits[row] for row in rows]), torch.full((5, VOCAB), 99.0)])
        assert sampler(*starts).sample(padded, rows) == [alone[row] for row in rows]


def test_sampling_does_not_change_the_logits():
    logits_RV = torch.stack([logits_of(0), logits_of(1)])
    before = logits_RV.clone()
    sampler(start(temperature=0.5, logit_bias={3: 50.0}, repetition_penalty=2.0, logprobs=3)).sample(logits_RV, [1])
    assert torch.equal(logits_RV, before)


def test_samples_follow_the_softmax():
    """8,000 samples with fixed seeds, compared with the probabilities by chi-square (11 degrees of freedom)."""
    logits_V = torch.linspace(-1.5, 1.5, 12)
    expected = torch.softmax(logits_V / 1.4, dim=-1) * 8_000
    counts = torch.zeros(12)
    for seed in range(100):
        row = sampler(start(temperature=1.4, seed=seed))
        for _ in range(80):
            counts[row.sample(logits_V[None], [1])[0][0]] += 1
    assert float(((counts - expected) ** 2 / expected).sum()) < 31.3  # one in a thousand is larger


def test_a_tiny_temperature_is_greedy():
    logits_V = logits_of(5)
    logits_V[0] = 0.0
    best = int(logits_V.argmax())
    for temperature in (1e-3, 1e-6, 1e-20, 1e-40, 5e-324):
        for params in ({}, {"top_p": 0.9, "min_p": 0.1, "top_k": 5}):
            assert sample_one(logits_V, start(temperature=temperature, **params)) == best


@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_top_p_keeps_the_smallest_set_also_of_a_flat_distribution(scale: float, top_p: float):
    """With more tokens than the prefix that is checked first; without the last one the sum is below top_p."""
    logits_V = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * scale
    kept = _candidates(logits_V, SamplingRow(start(top_p=top_p), EOS))
    shares = torch.softmax(logits_V.double(), dim=-1)[kept]
    assert kept.tolist() == sorted(kept.tolist())
    assert float(shares.sum()) >= top_p - 1e-5
    assert float(shares.sum() - shares.min()) < top_p + 1e-5
    assert set(kept.tolist()) == set(torch.topk(logits_V, len(kept)).indices.tolist())


# --- Several choices of one prompt -------------------------------------------------------------------------------


def test_choices_sample_different_tokens_from_one_row():
    """Noise depends on the choice: n choices are the same as n requests with that (seed, choice) each."""
    logits = [smooth_logits_of(step) for step in range(30)]
    together = sampler(*(start(row=choice + 1, choice=choice, n=8, seed=5) for choice in range(8)))
    samples = [
        [token_id for token_id, _ in together.sample(logits_V.repeat(8, 1), range(1, 9))] for logits_V in logits
    ]  # fmt: skip
    assert len({tuple(tokens) for tokens in zip(*samples, strict=True)}) == 8
    for choice, tokens in enumerate(zip(*samples, strict=True)):
        alone = sampler(start(row=3, choice=choice, seed=5))
        assert tuple(alone.sample(logits_V[None], [3])[0][0] for logits_V in logits) == tokens


HISTORIES = [
    {"seed": 9, "temperature": 0.8},
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"seed": 9, "presence_penalty": 1.0, "frequency_penalty": 0.7, "min_tokens": 4, "logprobs": 2},
]


@pytest.mark.parametrize("params", HISTORIES)
@pytest.mark.parametrize("num_together", [2, 3, 7])
def test_samples_of_several_positions_are_the_same_as_one_by_one(params: dict, num_together: int):
    logits_RV = torch.stack([logits_of(step) for step in range(7)])
    one_by_one = sampler(start(**params))
    expected = [one_by_one.sample(logits_V[None], [1])[0] for logits_V in logits_RV]
    together, samples = sampler(start(**params)), []
    for first in range(0, 7, num_together):
        count = min(num_together, 7 - first)
        samples += together.sample(logits_RV[first:], [1] * count, range(2 + first, 2 + first + count))
    assert samples == expected


@pytest.mark.parametrize("params", HISTORIES)
def test_samples_after_rejected_draft_tokens_are_forgotten(params: dict):
    """After the first sample of each step come samples after rejected draft tokens; they are sampled again later."""
    logits_RV = torch.stack([logits_of(step) for step in range(9)])
    one_by_one, with_drafts = sampler(start(**params)), sampler(start(**params))
    for step in range(6):
        expected = one_by_one.sample(logits_RV[step][None], [1])[0]
        rows = torch.stack([logits_RV[step], *(logits_of(100 + step + number) for number in range(3))])
        assert with_drafts.sample(rows, [1] * 4, range(2 + step, 6 + step))[0] == expected


def test_candidates_of_best_of_have_only_their_own_logprob():
    (token_id, found), = sampler(start(n=1, best_of=3)).sample(logits_of(3)[None], [1])  # fmt: skip
    assert found.logprob == pytest.approx(float(torch.log_softmax(logits_of(3), dim=-1)[token_id]), abs=1e-6)
    assert found.top_token_ids == () and found.top_logprobs == ()


@pytest.mark.parametrize("params", [{}, {"min_tokens": 5}, {"ignore_eos": True}])
def test_a_beam_has_twice_as_many_candidates_as_beams_from_the_raw_logits(params: dict):
    """Also stop tokens: the beam search decides which hypotheses end."""
    logits_V = smooth_logits_of(1)
    logits_V[1] = 20.0
    beam = start(use_beam_search=True, beam_width=5, **params)
    (token_id, found), = sampler(beam).sample(logits_V[None], [1])  # fmt: skip
    exact = torch.log_softmax(logits_V.double(), dim=-1)
    assert token_id == 1 and found.rank == 1
    assert list(found.top_token_ids) == exact.argsort(descending=True).tolist()[:10]
    assert list(found.top_logprobs) == pytest.approx(exact[list(found.top_token_ids)].tolist(), abs=1e-5)


# --- Logprobs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(count: int):
    """Temperature, filters, bias and penalties do not change them."""
    logits_V = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2)) * 4
    row = start(logprobs=count, temperature=2.0, top_k=50, logit_bias={4: 9.0}, repetition_penalty=1.5)
    (token_id, found), = sampler(row).sample(logits_V[None], [1])  # fmt: skip
    exact = torch.log_softmax(logits_V.double(), dim=-1)
    order = exact.argsort(descending=True).tolist()
    assert found.logprob == pytest.approx(float(exact[token_id]), abs=1e-5)
    assert found.rank == order.index(token_id) + 1
    assert list(found.top_token_ids) == order[:count]
    assert list(found.top_logprobs) == pytest.approx(exact[order[:count]].tolist(), abs=1e-5)


def test_there_are_no_logprobs_unless_requested():
    assert sampler(start()).sample(logits_of(0)[None], [1])[0][1] is None


def test_more_logprobs_do_not_change_the_first_ones():
    logits_RV = logits_of(4)[None]
    few, many = (sampler(start(temperature=0, logprobs=count)).sample(logits_RV, [1])[0][1] for count in (2, 20))
    assert many.top_logprobs[:2] == few.top_logprobs and many.logprob == few.logprob


def test_equal_logits_are_in_one_order_in_the_top_list():
    """In a tie the sampled (lowest) id is the first of the top list."""
    logits_V = torch.zeros(VOCAB)
    (token_id, found), = sampler(start(temperature=0, logprobs=5)).sample(logits_V[None], [1])  # fmt: skip
    assert found.rank == 1 and token_id == 0
    assert found.top_token_ids[0] == token_id


def test_a_released_row_is_forgotten():
    released = sampler(start(row=2))
    released.release(2)
    released.release(2)
    with pytest.raises(KeyError):
        released.sample(logits_of(0)[None], [2])
