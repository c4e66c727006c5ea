"""The sampling noise of app/engine/execute/noise.py as functions of the device: the same bits, logarithms within 2 ulp.

The key is mixed once per row in 64 bits; each token costs two mixings of 32 bits and two logarithms.
"""

from __future__ import annotations

import triton
import triton.language as tl

SERIES_BELOW = tl.constexpr(1e-3)
THIRD = tl.constexpr(1 / 3)
TWO_TO_MINUS_32 = tl.constexpr(2.0**-32)


@triton.jit
def splitmix64(x):
    """Mix 64 bits (Steele, Lea, Flood 2014)."""
    x += tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    x = (x ^ (x >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def lowbias32(x):
    """Mix 32 bits (Wellons 2018)."""
    x = (x ^ (x >> 16)) * tl.full([], 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([], 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def noise_bits(seed_low, seed_high, choice, position, tokens):
    """Return 32 random bits for each token id; the other arguments are int32 scalars, the seed's in two halves."""
    seed = seed_high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32 | seed_low.to(tl.uint32, bitcast=True).to(
        tl.uint64
    )
    key = splitmix64(seed ^ splitmix64(choice.to(tl.uint64) << 32 | position.to(tl.uint64)))
    return lowbias32(lowbias32(tokens.to(tl.uint32) ^ key.to(tl.uint32)) ^ (key >> 32).to(tl.uint32))


@triton.jit
def uniform(bits):
    """Return random bits as float32 in (0, 1]: it can round to 1."""
    return (bits.to(tl.float32) + 0.5) * TWO_TO_MINUS_32


@triton.jit
def gumbel_noise(seed_low, seed_high, choice, position, tokens):
    """Return Gumbel noise, float32, of each token id; -inf where u rounds to 1."""
    u = uniform(noise_bits(seed_low, seed_high, choice, position, tokens))
    rest = 1.0 - u
    exact = -tl.log(tl.where(rest > 0.0, rest, 0.5))  # no logarithm of 0: the interpreter would warn
    series = u * (1.0 + u * (0.5 + u * THIRD))
    return tl.where(rest > 0.0, -tl.log(tl.where(u < SERIES_BELOW, series, exact)), float("-inf"))
