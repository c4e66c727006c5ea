"""The native sampler compared with the host sampler, and its guarantees for every instruction set."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from app.engine.execute.host_sampler import Sampler
from app.engine.execute.noise import gumbel, noise_bits
from app.kernels.cpu.library import NativeLibrary
from tests.engine.execute.noise_vector import NOISE_VECTOR
from tests.kernels.cpu.sampling import TINIEST, Batch, RowParams


def one(library: NativeLibrary, logits_V: Tensor, params: RowParams, position: int = 5) -> int:
    """The token of a single row."""
    return Batch(logits_V[None].float(), [params], [position]).sample(library)[0]


def reference(batch: Batch) -> list[int]:
    """The tokens that the host sampler samples."""
    sampler = Sampler(())
    for row, each in enumerate(batch.params):
        sampler.start(each.start(row))
    positions = [batch.positions[row] + 1 for row in batch.rows or range(len(batch.params))]
    return [token for token, _ in sampler.sample(batch.logits_RV, range(len(batch.params)), positions)]


def score(logits_V: Tensor, params: RowParams, position: int, token: int) -> float:
    """Score and noise of a token."""
    noise = gumbel(noise_bits(params.seed, params.choice, position, np.array([token], dtype=np.uint32)))
    return float(logits_V[token] / max(params.temperature, TINIEST) + noise[0])


# --- The same tokens as the Python sampler -------------------------------------------------------------------------


def random_params(rng: random.Random) -> RowParams:
    """Any combination of parameters, with extreme values."""
    params = RowParams(
        rng.choice((0.0, 1e-6, 1e-3, 0.3, 0.7, 1.0, 1.3, 2.0)), seed=rng.getrandbits(64), choice=rng.randrange(3)
    )
    if rng.random() < 0.4:
        params.top_k = rng.choice((-1, 1, 2, 5, 50, 300, 5000, 2**31 - 1))
    if rng.random() < 0.4:
        params.top_p = rng.choice((1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-7))
    if rng.random() < 0.3:
        params.min_p = rng.choice((1e-4, 0.01, 0.05, 0.3, 1.0))
    return params


def random_batch(rng: random.Random) -> Batch:
    """Some rows of one kind of logits: smooth, with ties, with NaN or infinity, or all equal."""
    count, width = rng.choice((1, 3, 8)), rng.choice((1, 7, 63, 64, 65, 129, 1000, 4099, 20_000))
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    logits_RV = torch.randn(count, width, generator=generator) * rng.choice((0.1, 1, 3, 10, 1e4, 1e30))
    logits_RV += rng.choice((0, -20, 50))
    kind = rng.randrange(6)
    if kind == 0:
        logits_RV = (logits_RV * 4).round() / 4
    elif kind == 1:
        for _ in range(5):
            logits_RV[rng.randrange(count), rng.randrange(width)] = rng.choice((math.inf, -math.inf, math.nan))
    elif kind == 2:
        logits_RV[:] = rng.choice((math.inf, -math.inf, math.nan, 0.0))
    params = [random_params(rng) for _ in range(count)]
    return Batch(logits_RV, params, [rng.randrange(5000) for _ in range(count)])


def test_tokens_are_those_of_the_host_sampler(library: NativeLibrary):
    """For all parameters; tokens may differ if scores are equal within rounding, less than once in a thousand."""
    rng = random.Random(library.instruction_set)
    num_rows = num_ties = 0
    for _ in range(250):
        batch = random_batch(rng)
        num_rows += len(batch.params)
        sampled, expected = batch.sample(library), reference(batch)
        for row, (each, token, other) in enumerate(zip(batch.params, sampled, expected, strict=True)):
            if token != other:
                scored = (batch.logits_RV[row], each, batch.positions[row] + 1)
                assert score(*scored, token) == pytest.approx(score(*scored, other), rel=1e-6, abs=1e-5), each
                num_ties += 1
    assert num_ties < num_rows / 1000


@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0, 4.0])
def test_the_token_with_the_highest_score_is_always_sampled(library: NativeLibrary, scale: float):
    """Compare with the noise of all tokens; the kernel computes noise only for tokens that can win."""
    logits_RV = torch.randn(20, 49_152, generator=torch.Generator().manual_seed(4)) * scale
    params = [RowParams(seed=row) for row in range(20)]
    batch = Batch(logits_RV, params, [9] * 20)
    tokens = np.arange(49_152, dtype=np.uint32)
    noise_RV = np.stack([gumbel(noise_bits(each.seed, 0, 10, tokens)) for each in params])
    assert batch.sample(library) == np.argmax(logits_RV.numpy() + noise_RV, axis=1).tolist()


@pytest.mark.parametrize("key", NOISE_VECTOR)
def test_noise_is_that_of_the_noise_vector(library: NativeLibrary, key: tuple[int, int, int, int]):
    seed, choice, position, token = key
    params, noise = RowParams(seed=seed & 2**64 - 1, choice=choice), NOISE_VECTOR[key][1]
    if noise > -math.inf:
        check_noise(library, params, position, [token], np.array([noise]))
    else:  # u rounds to 1: the token is never sampled, however likely it is
        logits_V = torch.full((token + 2,), -math.inf)
        logits_V[token:] = torch.tensor([1000.0, -1000.0])
        assert one(library, logits_V, params, position - 1) == token + 1


def test_noise_is_that_of_the_host_sampler(library: NativeLibrary):
    """For arbitrary tokens, and for tokens whose noise is closest to the upper bound that the kernel uses."""
    tokens = np.arange(60_000, dtype=np.uint32)
    bits = noise_bits(11, 0, 77, tokens)
    noise = gumbel(bits)
    u = (bits + 0.5) * 2.0**-32
    slack = (1 - np.frexp(u)[1] - (2 * np.frexp(u)[0] - 1)) * math.log(2) - noise
    for which in (tokens[:400], np.argsort(slack)[:400], np.argsort(u)[:100]):
        check_noise(library, RowParams(seed=11), 77, which.tolist(), noise[which])


def check_noise(
    library: NativeLibrary, params: RowParams, position: int, tokens: list[int], expected: np.ndarray
) -> None:
    """Each token loses to a rival with a slightly higher sum of score and noise, and wins against a lower one."""
    rivals = [token + 1 for token in tokens]
    rival_noise = gumbel(noise_bits(params.seed, params.choice, position, np.array(rivals, dtype=np.uint32)))
    rows = range(len(tokens))
    for ahead in (-1, 1):
        logits_RV = torch.full((len(tokens), max(rivals) + 1), -math.inf)
        logits_RV[rows, tokens] = 0.0
        edge = expected - rival_noise + ahead * 4e-7 * np.maximum(1.0, np.maximum(abs(expected), abs(rival_noise)))
        logits_RV[rows, rivals] = torch.from_numpy(edge).float()
        sampled = Batch(logits_RV, [params] * len(tokens), [position - 1] * len(tokens)).sample(library)
        assert sampled == (rivals if ahead > 0 else tokens)


def test_samples_follow_the_softmax(library: NativeLibrary):
    """8,000 samples with fixed seeds, compared with the probabilities by chi-square (11 degrees of freedom)."""
    logits_V = torch.linspace(-1.5, 1.5, 12)
    batch = Batch(logits_V.expand(8000, 12).contiguous(), [RowParams(1.4, seed=3)] * 8000, range(8000))
    counts = np.bincount(batch.sample(library), minlength=12)
    expected = torch.softmax(logits_V / 1.4, dim=-1).numpy() * 8000
    assert float(((counts - expected) ** 2 / expected).sum()) < 31.3  # one in a thousand is larger


# --- One rule each -------------------------------------------------------------------------------------------------


def possible_tokens(library: NativeLibrary, logits_V: Tensor, **params: float) -> set[int]:
    """All different tokens of 2,000 samples."""
    rows = Batch(logits_V.expand(2000, -1).contiguous(), [RowParams(**params, seed=8)] * 2000, range(2000))
    return set(rows.sample(library))


def test_greedy_samples_the_lowest_id_of_equal_logits(library: NativeLibrary):
    for width in (31, 64, 1000):
        logits_V = torch.full((width,), -math.inf)
        assert one(library, logits_V, RowParams(0.0)) == -1
        logits_V[[7, 9, width - 1]] = 2.0
        assert one(library, logits_V, RowParams(0.0)) == 7
        logits_V[[7, 9]] = math.nan
        assert one(library, logits_V, RowParams(0.0)) == width - 1
        assert one(library, torch.full((width,), math.nan), RowParams(0.0)) == -1


def test_a_number_is_sampled_among_any_nans(library: NativeLibrary):
    for params in (RowParams(0.0), RowParams(), RowParams(top_k=2, top_p=0.9, min_p=0.1)):
        for token in range(0, 200, 7):
            logits_V = torch.full((200,), math.nan)
            logits_V[token] = -3.0
            assert one(library, logits_V, params) == token


def test_filters_keep_tokens_equal_to_the_last_kept_one(library: NativeLibrary):
    logits_V = torch.tensor([0.0, 2.0, 1.0, 1.0, -3.0, 1.0, 2.0, 0.5])
    assert possible_tokens(library, logits_V, top_k=1) == {1, 6}
    assert possible_tokens(library, logits_V, top_k=3) == {1, 2, 3, 5, 6}
    assert possible_tokens(library, logits_V, top_k=6) == {1, 2, 3, 5, 6, 7}
    assert possible_tokens(library, logits_V, top_k=8) == set(range(8))
    assert possible_tokens(library, logits_V, top_p=1e-9) == {1, 6}
    assert possible_tokens(library, logits_V, top_p=0.7) == {1, 2, 3, 5, 6}
    assert possible_tokens(library, logits_V, min_p=math.exp(-1.75)) == {1, 2, 3, 5, 6, 7}
    assert possible_tokens(library, logits_V, min_p=1.0) == {1, 6}


def test_top_p_counts_only_tokens_kept_by_top_k(library: NativeLibrary):
    logits_V = torch.cat([torch.tensor([1.0, 0.0]), torch.full((5000,), -1.0)])
    assert possible_tokens(library, logits_V, top_p=0.7, top_k=2) == {0}, "0.73 of the two kept tokens, nearly 0 of all"
    assert len(possible_tokens(library, logits_V, top_p=0.7)) > 1000
    logits_V = torch.cat([torch.linspace(0, -1.2, 64), torch.full((640,), -1.5)])
    assert possible_tokens(library, logits_V, top_p=0.9999, top_k=64) == set(range(64))


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.003, 0.3, 0.95, 0.9999])
def test_top_p_samples_from_the_smallest_set(library: NativeLibrary, scale: float, top_p: float):
    """For 20,000 tokens, flat and steep: the token is the best of the smallest set that reaches top-p in float64."""
    logits_RV = torch.randn(30, 20_000, generator=torch.Generator().manual_seed(2)) * scale
    sampled = Batch(logits_RV, [RowParams(top_p=top_p, seed=row) for row in range(30)], [7] * 30).sample(library)
    for row, token in enumerate(sampled):
        scores, order = torch.softmax(logits_RV[row].double(), dim=-1).sort(descending=True)
        size = int((scores.cumsum(dim=0) < top_p).sum()) + 1
        nearest = float((scores.cumsum(dim=0)[max(0, size - 2) : size] - top_p).abs().min())
        noise = gumbel(noise_bits(row, 0, 8, order.numpy().astype(np.uint32)))
        best = int(np.argmax(logits_RV[row][order[:size]].numpy() + noise[:size]))
        assert token == int(order[best]) or nearest < 1e-6


def test_min_p_is_relative_to_the_highest_probability(library: NativeLibrary):
    logits_V = torch.log(torch.tensor([0.5, 0.24, 0.26, 0.2]))
    assert possible_tokens(library, logits_V, min_p=0.5) == {0, 2}


def test_where_nothing_is_possible_no_token_is_drawn(library: NativeLibrary):
    for params in (RowParams(), RowParams(top_k=3), RowParams(top_p=0.5), RowParams(min_p=0.5)):
        assert one(library, torch.full((200,), -math.inf), params) == -1
        assert one(library, torch.full((200,), math.nan), params) == -1


def test_a_row_for_the_host_gives_minus_one(library: NativeLibrary):
    logits_RV = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    params = [RowParams(0.0), RowParams(is_on_host=True), RowParams(0.0)]
    tokens = Batch(logits_RV, params, [1, 2, 3]).sample(library)
    assert tokens == [int(logits_RV[0].argmax()), -1, int(logits_RV[2].argmax())]


def test_several_rows_sample_from_one_token_row_with_their_own_noise(library: NativeLibrary):
    logits_RV = torch.zeros(12, 500)
    params = [RowParams(seed=5, choice=choice) for choice in range(12)]
    batch = Batch(logits_RV, params, [3, 8, 2], [1] * 12)
    tokens = batch.sample(library)
    assert tokens == reference(batch) and len(set(tokens)) > 9


def test_one_sequence_samples_at_several_positions_in_one_step(library: NativeLibrary):
    logits_RV = torch.zeros(6, 500)
    together = Batch(logits_RV, [RowParams(seed=5)] * 6, range(40, 46)).sample(library)
    assert together == [one(library, logits_RV[0], RowParams(seed=5), position) for position in range(40, 46)]
    assert len(set(together)) > 4


# --- Batches, threads, memory --------------------------------------------------------------------------------------


def test_a_token_depends_neither_on_the_batch_nor_on_threads(library: NativeLibrary):
    rng = random.Random(0)
    params = [random_params(rng) for _ in range(40)]
    logits_RV = torch.randn(40, 3001, generator=torch.Generator().manual_seed(0)) * 2
    positions = [rng.randrange(900) for _ in range(40)]
    alone = [one(library, logits_RV[row], params[row], positions[row]) for row in range(40)]
    assert len(set(alone)) > 10
    for num_threads in (1, 2, 3, 5):
        for _ in range(5):
            rows = rng.choices(range(40), k=rng.randrange(1, 40))
            batch = Batch(logits_RV[rows], [params[row] for row in rows], [positions[row] for row in rows])
            assert batch.sample(library, num_threads) == [alone[row] for row in rows]


def test_rows_beyond_those_of_the_step_are_not_written(library: NativeLibrary):
    batch = Batch(torch.zeros(5, 100), [RowParams(0.0)] * 5, [1] * 5)
    for num_threads in (1, 3):
        assert batch.sample(library, num_threads, 0) == [-7] * 5
        assert batch.sample(library, num_threads, 2) == [0, 0, -7, -7, -7]


@pytest.mark.parametrize("width", [1, 15, 63, 64, 65, 100])
def test_logits_beyond_the_width_are_not_sampled(library: NativeLibrary, width: int):
    wide = torch.full((9, 192), 1e9)
    wide[:, :width] = torch.linspace(0, 1, width)
    params = [RowParams(temperature, top_k=top_k, top_p=top_p) for temperature in (0.0, 1.0, 2.0) for top_k, top_p in
            ((0, 1.0), (60, 1.0), (0, 0.99))]  # fmt: skip
    assert max(Batch(wide[:, :width], params, [4] * 9).sample(library, 2)) < width


def test_every_token_of_a_flat_row_can_be_sampled(library: NativeLibrary):
    counts = Counter(Batch(torch.zeros(6000, 100), [RowParams(seed=1)] * 6000, range(6000)).sample(library))
    assert set(counts) == set(range(100)) and max(counts.values()) < 110
