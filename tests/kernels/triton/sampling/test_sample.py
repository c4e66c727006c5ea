"""The sampling kernels on the GPU, or in the interpreter, compared with the host sampler."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from app.engine.execute.host_sampler import SamplingRow
from app.engine.execute.noise import gumbel, noise_bits
from app.kernels.triton.row_layout import NO_ALLOWED_TOKEN, NO_TOKEN
from app.kernels.triton.sampling import sample as sampling
from tests.cases import long
from tests.engine.execute.noise_vector import NOISE_VECTOR
from tests.kernels.triton.sampling_rows import DEVICE, EOS, UNWRITTEN, SampleBatch, start

# A program takes a thousand times as long in the interpreter as on a GPU.
REPEATS = 20 if torch.cuda.is_available() else 1


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a few hundred logits have several, and that the kept candidates often do not suffice."""
    monkeypatch.setattr(sampling, "BLOCK", 128)
    monkeypatch.setattr(sampling, "KEPT", 64)
    monkeypatch.setattr(sampling, "ROW_BLOCK", 512)


def sample(batch, adjusted_RV=None):
    """The tokens that the kernels sample; scratch, padding and by default the adjusted logits have invalid values."""
    count, width = batch.logits_RV.shape
    scratch = torch.full((count, sampling.scratch_width(width)), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    tokens = torch.full((count,), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    if adjusted_RV is None:
        adjusted_RV = torch.full_like(batch.logits_RV, torch.nan)
        adjusted_RV[:, 0] = 1e9
    sampling.sample(batch.logits_RV, adjusted_RV, *batch.inputs, scratch_RX=scratch, tokens_R=tokens)
    return tokens.tolist()


def one(logits, **params):
    """The token of a single row."""
    return sample(SampleBatch(torch.as_tensor(logits, dtype=torch.float32)[None], [start(0, **params)]))[0]


def possible_tokens(logits, **params):
    """The tokens sampled at positions where, without filters, each token would be sampled in turn."""
    logits_V, tokens = np.array(logits, dtype=np.float32), np.arange(len(logits), dtype=np.uint32)
    winners = [int(np.argmax(logits_V + gumbel(noise_bits(8, 0, position, tokens)))) for position in range(1, 3000)]
    positions = [winners.index(token) for token in range(len(logits))]
    logits_RV = torch.from_numpy(logits_V).expand(len(logits), -1).contiguous()
    return set(sample(SampleBatch(logits_RV, [start(0, temperature=1.0, seed=8, **params)] * len(logits), positions)))


def expected(batch):
    """The tokens of the host sampler."""
    return batch.sampled()


def score(batch, index, token):
    """Score and noise of a token."""
    given, position = batch.starts[index], batch.positions[index] + 1
    scaled = SamplingRow(given, EOS).adjusted(batch.logits_RV[index].cpu(), position)[token]
    ids = np.array([token], dtype=np.uint32)
    return float(scaled) + float(gumbel(noise_bits(given.sampling.seed, given.choice, position, ids))[0])


def num_ties(batch):
    """Compare with the host sampler, and count tokens that differ because their scores are equal within rounding."""
    ties = 0
    for index, (token, other) in enumerate(zip(sample(batch), expected(batch), strict=True)):
        if token != other:
            scores = score(batch, index, token), score(batch, index, other)
            assert scores[0] == pytest.approx(scores[1], rel=1e-6, abs=1e-5), batch.starts[index]
            ties += 1
    return ties


# --- The same tokens as the CPU's sampler --------------------------------------------------------------------------


def random_params(rng):
    """Any combination of parameters, with extreme values."""
    params = {"temperature": rng.choice((0.0, 1e-6, 1e-3, 0.3, 0.7, 1.0, 1.3, 2.0))}
    params |= {"seed": rng.choice((-1, 1)) * rng.getrandbits(63), "choice": rng.randrange(3)}
    if rng.random() < 0.2:
        params["seed"] = 2**64 - 1 - rng.getrandbits(62)
    if rng.random() < 0.4:
        params["top_k"] = rng.choice((-1, 1, 2, 5, 50, 300, 5000, 2**31 - 1))
    if rng.random() < 0.4:
        params["top_p"] = rng.choice((1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-7))
    if rng.random() < 0.3:
        params["min_p"] = rng.choice((1e-4, 0.01, 0.05, 0.3, 1.0))
    return params


def random_batch(rng, widths):
    """Some rows of one kind of logits: smooth, with ties, with NaN or infinity, or all equal."""
    count, width = rng.choice((1, 3, 8)), rng.choice(widths)
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    logits_RV = torch.randn(count, width, generator=generator) * rng.choice((0.1, 1, 3, 10, 1e4, 1e30))
    logits_RV += rng.choice((0, -20, 50))
    kind = rng.randrange(7)
    if kind == 0:
        logits_RV = (logits_RV * 4).round() / 4
    elif kind == 1:
        for _ in range(5):
            logits_RV[rng.randrange(count), rng.randrange(width)] = rng.choice((math.inf, -math.inf, math.nan))
    elif kind == 2:
        logits_RV[:] = rng.choice((math.inf, -math.inf, math.nan, 0.0))
    elif kind == 3:
        logits_RV = logits_RV.bfloat16().float()
    elif kind == 4:
        logits_RV[:, rng.randrange(width)] += 30
    starts = [start(0, **random_params(rng)) if rng.random() < 0.95 else None for _ in range(count)]
    return SampleBatch(logits_RV, starts, [rng.randrange(5000) for _ in range(count)])


def test_tokens_of_small_vocabularies_equal_those_of_the_cpu(small_blocks):
    """For all parameters; tokens may differ if scores are equal within rounding, less than once in a thousand."""
    rng = random.Random(3)
    batches = [random_batch(rng, (1, 2, 63, 65, 127, 129, 500, 1001)) for _ in range(12 * REPEATS)]
    assert sum(map(num_ties, batches)) < max(1, sum(len(batch.starts) for batch in batches) / 1000)


def test_tokens_of_large_vocabularies_equal_those_of_the_cpu():
    rng = random.Random(5)
    assert sum(num_ties(random_batch(rng, (4095, 4099, 20_000))) for _ in range(6 * REPEATS)) == 0


@pytest.mark.parametrize("scale", [0.0, long(0.05), 1.0, long(5.0)])
def test_filters_of_a_large_vocabulary_equal_those_of_the_cpu(scale):
    """From flat logits, of which the blocks cannot keep enough candidates, to peaked ones."""
    logits_RV = torch.randn(6, 20_003, generator=torch.Generator().manual_seed(4)) * scale
    logits_RV[:, :2000] += scale  # likely tokens are neighbours
    cases = (
        {"top_k": 20, "top_p": 0.95}, {"top_p": 0.9}, {"top_k": 1500}, {"min_p": 0.02}, {"top_p": 0.5, "min_p": 0.3},
        {"top_k": 40_000, "top_p": 0.999},
    )  # fmt: skip
    batch = SampleBatch(
        logits_RV, [start(0, temperature=0.8, seed=row, **case) for row, case in enumerate(cases)], [9] * 6
    )
    assert num_ties(batch) == 0


def test_likely_tokens_in_one_block_are_all_considered(small_blocks):
    """Of the 60 likely tokens, the block of the first 64 ids keeps at most 16."""
    logits_RV = torch.randn(6, 400, generator=torch.Generator().manual_seed(1)) * 0.01
    logits_RV[:, :60] += 1.5
    cases = ({"top_k": 20}, {"top_p": 0.3})
    starts = [start(0, temperature=1.0, seed=2, **case) for case in cases for _ in range(3)]
    assert num_ties(SampleBatch(logits_RV, starts, range(6))) == 0


def test_the_token_with_the_highest_score_is_sampled():
    for scale in (0.0, 0.02):
        logits_RV = torch.randn(4, 10_000, generator=torch.Generator().manual_seed(4)) * scale
        batch = SampleBatch(logits_RV, [start(0, temperature=1.0, seed=row) for row in range(4)], [9] * 4)
        tokens = np.arange(10_000, dtype=np.uint32)
        noise_RV = np.stack([gumbel(noise_bits(row, 0, 10, tokens)) for row in range(4)])
        assert sample(batch) == np.argmax(logits_RV.numpy() + noise_RV, axis=1).tolist()


def test_a_token_whose_u_rounds_to_one_is_not_sampled(small_blocks):
    (seed, choice, position, token), _ = next(item for item in NOISE_VECTOR.items() if item[1][1] == -math.inf)
    logits_V = torch.full((token + 2,), -math.inf)
    logits_V[token:] = torch.tensor([1000.0, -1000.0])
    for params in ({}, {"top_k": 2}, {"top_p": 0.9999999, "min_p": 0.0}):
        given = start(0, seed=seed, choice=choice, temperature=1.0, **params)
        only_one_left = params.get("top_p", 1.0) < 1.0
        assert sample(SampleBatch(logits_V[None], [given], [position - 1])) == [token if only_one_left else token + 1]


def test_samples_follow_the_softmax(small_blocks):
    """SampleBatch at fixed seeds against the probabilities after temperature, by chi-square (11 degrees of freedom)."""
    logits_V, count = torch.linspace(-1.5, 1.5, 12), 120 * REPEATS
    batch = SampleBatch(
        logits_V.expand(count, 12).contiguous(), [start(0, temperature=1.4, seed=3)] * count, range(count)
    )
    counts = np.bincount(sample(batch), minlength=12)
    wanted = torch.softmax(logits_V / 1.4, dim=-1).numpy() * count
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 31.3  # one in a thousand is larger


# --- One rule each -------------------------------------------------------------------------------------------------


def test_greedy_samples_the_lowest_id_of_equal_logits():
    for width in (31, 64, 9000):
        logits_V = torch.full((width,), -math.inf)
        assert one(logits_V) == NO_TOKEN
        logits_V[[7, 9, width - 1]] = 2.0
        assert one(logits_V) == 7
        logits_V[[7, 9]] = math.nan
        assert one(logits_V) == width - 1
        assert one(torch.full((width,), math.nan), top_k=3) == NO_TOKEN


def test_a_number_is_sampled_among_any_nans(small_blocks):
    for params in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.9, "min_p": 0.1}):
        for token in range(0, 400, 90):
            logits_V = torch.full((400,), math.nan)
            logits_V[token] = -3.0
            assert one(logits_V, **params) == token


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, {1, 6}),
        ({"top_k": 3}, {1, 2, 3, 5, 6}),
        ({"top_k": 6}, {1, 2, 3, 5, 6, 7}),
        ({"top_k": 8}, set(range(8))),
        ({"top_p": 1e-9}, {1, 6}),
        ({"top_p": 0.7}, {1, 2, 3, 5, 6}),
        ({"min_p": math.exp(-1.75)}, {1, 2, 3, 5, 6, 7}),
        ({"min_p": 1.0}, {1, 6}),
    ],
)
def test_filters_keep_tokens_equal_to_the_last_kept_one(small_blocks, params, kept):
    assert possible_tokens([0.0, 2.0, 1.0, 1.0, -3.0, 1.0, 2.0, 0.5], **params) == kept


def test_top_p_counts_only_tokens_kept_by_top_k(small_blocks):
    logits = [1.0, 0.0] + [-1.0] * 8
    assert possible_tokens(logits, top_p=0.7, top_k=2) == {0}, "0.73 of the two kept tokens, 0.41 of all"
    assert len(possible_tokens(logits, top_p=0.7)) > 6


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_where_nothing_is_possible_no_token_is_sampled(small_blocks, params, value):
    assert one(torch.full((300,), value), temperature=1.0, **params) == NO_TOKEN


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}], ids=str)
@pytest.mark.parametrize(
    ("value", "has_masks", "token"),
    [(-1.0, True, NO_ALLOWED_TOKEN), (-1.0, False, NO_TOKEN), (math.nan, True, NO_TOKEN), (-math.inf, True, NO_TOKEN)],
)
def test_where_a_mask_leaves_nothing_the_raw_logits_say_why(small_blocks, params, value, has_masks, token):
    """The row's logits are changed in both cases: by its mask, or by a bias."""
    for width in (1, 300, 1100):
        logits_RV = torch.full((1, width), math.nan)
        logits_RV[0, -1] = value
        changes = {"has_masks": True} if has_masks else {"logit_bias": {0: -1.0}}
        batch = SampleBatch(logits_RV, [start(0, **changes, **params)])
        assert sample(batch, torch.full_like(batch.logits_RV, -math.inf)) == [token]


def test_every_token_of_a_flat_row_can_be_sampled(small_blocks):
    assert possible_tokens([0.0] * 40) == set(range(40))


# --- Batches and memory --------------------------------------------------------------------------------------------


def test_a_token_does_not_depend_on_the_batch(small_blocks):
    rng = random.Random(0)
    starts = [start(0, **random_params(rng)) for _ in range(8)]
    logits_RV = torch.randn(8, 300, generator=torch.Generator().manual_seed(0)) * 2
    positions = [rng.randrange(900) for _ in range(8)]
    alone = [
        sample(SampleBatch(logits_RV[row : row + 1], starts[row : row + 1], [positions[row]]))[0] for row in range(8)
    ]
    assert len(set(alone)) > 4
    for count in (8, 5):
        rows = rng.choices(range(8), k=count)
        batch = SampleBatch(logits_RV[rows], [starts[row] for row in rows], [positions[row] for row in rows])
        assert sample(batch) == [alone[row] for row in rows]


def test_rows_with_adjusted_logits_are_sampled_from_them(small_blocks):
    generator = torch.Generator().manual_seed(2)
    logits_RV, adjusted_RV = torch.randn(2, 9, 300, generator=generator) * 3
    cases = [{"temperature": temperature, **case} for temperature in (0.0, 1.0, 0.5) for case in
            ({}, {"top_k": 5}, {"top_p": 0.9999})]  # fmt: skip
    starts = [start(0, seed=index, logit_bias={index: 1.0}, **case) for index, case in enumerate(cases)]
    batch = SampleBatch(logits_RV, starts, range(9))
    scratch = torch.full((9, sampling.scratch_width(300)), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    tokens = torch.full((9,), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    sampling.sample(logits_RV.to(DEVICE), adjusted_RV.to(DEVICE), *batch.inputs, scratch_RX=scratch, tokens_R=tokens)
    plain = [start(0, seed=index, **case) for index, case in enumerate(cases)]
    assert tokens.tolist() == expected(SampleBatch(adjusted_RV, plain, range(9)))


def test_logits_beyond_the_width_are_not_sampled(small_blocks):
    for width in (1, 63, 65, 129, 300):
        wide = torch.full((6, 384), 1e9, device=DEVICE)
        wide[:, :width] = torch.linspace(0, 1, width)
        starts = [start(0, temperature=temperature, **case) for temperature in (0.0, 2.0) for case in
                  ({}, {"top_k": 290}, {"top_p": 0.999})]  # fmt: skip
        batch = SampleBatch(wide[:, :width], starts)
        batch.logits_RV = wide[:, :width]
        assert max(sample(batch)) < width
