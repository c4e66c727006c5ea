"""The noise never changes: a fixed vector, and a second implementation in plain Python integers and floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.execute.noise import gumbel, lowbias32, noise_bits, splitmix64
from tests.engine.execute.noise_vector import NOISE_VECTOR, ULP

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


def mix64(x: int) -> int:
    """splitmix64's step and output function."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
    return x ^ x >> 31


def mix32(x: int) -> int:
    """lowbias32."""
    x = ((x ^ x >> 16) * 0x7FEB352D) & MASK32
    x = ((x ^ x >> 15) * 0x846CA68B) & MASK32
    return x ^ x >> 16


def plain_bits(seed: int, choice: int, position: int, token: int) -> int:
    """The contract's formula in Python integers."""
    key = mix64(seed & MASK64 ^ mix64(choice << 32 | position))
    return mix32(mix32(token ^ key & MASK32) ^ key >> 32)


def plain_gumbel(bits: int) -> float:
    """The contract's formula in Python floats, except for u and 1 - u, whose rounding to float32 is part of it."""
    u = np.float32((np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-32))
    if u == 1.0:
        return -math.inf
    exact, wide = -math.log(float(np.float32(1.0) - u)), float(u)
    return -math.log(wide * (1 + wide * (0.5 + wide / 3)) if u < 1e-3 else exact)


def one(seed: int, choice: int, position: int, token: int) -> tuple[int, np.float32]:
    """Bits and noise of one token by the code under test."""
    bits = noise_bits(seed, choice, position, np.array([token], dtype=np.uint32))
    return int(bits[0]), gumbel(bits)[0]


@pytest.mark.parametrize("key", NOISE_VECTOR)
def test_the_noise_vector_never_changes(key: tuple[int, int, int, int]):
    bits, noise = one(*key)
    expected_bits, expected = NOISE_VECTOR[key]
    assert (bits, noise.dtype) == (expected_bits, np.float32)
    assert noise == expected or abs(noise - expected) <= 4 * ULP * max(1.0, abs(expected))


def test_a_u_that_rounds_to_one_gives_minus_infinity_without_a_warning():
    assert one(42, 0, 332, 560)[1] == -np.inf
    edges = np.array([2**32 - 1, 2**32 - 128, 2**32 - 129, 0], dtype=np.uint32)
    noise = gumbel(edges)
    assert noise[0] == noise[1] == -np.inf and np.isfinite(noise[2:]).all()
    assert noise[3] == pytest.approx(33 * math.log(2), abs=1e-5)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 7), st.integers(0, 2**31), st.integers(0, 2**20))
def test_noise_equals_the_second_implementation(seed: int, choice: int, position: int, token: int):
    bits, noise = one(seed, choice, position, token)
    assert bits == plain_bits(seed, choice, position, token)
    expected = plain_gumbel(bits)
    assert noise == expected or abs(noise - expected) <= 4 * ULP * max(1.0, abs(expected))


def test_the_mixers_have_their_published_values():
    """splitmix64 with state 0 (Vigna's reference program), lowbias32 as an exact bijection of small cases."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    words = np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint32)
    assert lowbias32(words).tolist() == [mix32(int(word)) for word in words]


@given(st.lists(st.integers(0, 999), unique=True, min_size=1), st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_noise_of_a_subset_of_tokens_has_the_same_bits(subset: list[int], seed: int, position: int):
    full = gumbel(noise_bits(seed, 0, position, np.arange(1000, dtype=np.uint32)))
    part = gumbel(noise_bits(seed, 0, position, np.array(subset, dtype=np.uint32)))
    assert part.tobytes() == full[subset].tobytes()


def test_noise_is_distributed_as_gumbel():
    """Mean is Euler's constant, variance pi squared / 6, and each decile has a tenth of the 200,000 values."""
    bits = [
        noise_bits(seed, 0, position, np.arange(1000, dtype=np.uint32)) for seed in range(10) for position in range(20)
    ]
    noise = gumbel(np.concatenate(bits)).astype(np.float64)
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    deciles = [-math.log(-math.log(share / 10)) for share in range(1, 10)]
    counts = np.bincount(np.searchsorted(deciles, noise), minlength=10)
    chi_square = float(((counts - len(noise) / 10) ** 2 / (len(noise) / 10)).sum())
    assert chi_square < 27.9  # 9 degrees of freedom: one in a thousand is larger, and the seeds are fixed
