"""Counter-based sampling noise: the same for (seed, choice, position, token) on every device and in every batch.

A request's samples depend only on these four numbers, so they do not depend on other requests, on preemption, or on a
restart. The integer part is exact everywhere; the logarithms agree within 2 ulp between devices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1


def splitmix64(x: int) -> int:
    """Mix 64 bits (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators")."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def lowbias32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Mix 32 bits (Wellons 2018, "Prospecting for hash functions": the function lowbias32)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def noise_bits(seed: int, choice: int, position: int, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return 32 random bits for each token id at one position of one choice; `seed` counts modulo 2**64."""
    key = splitmix64((seed & _MASK) ^ splitmix64(choice << 32 | position))
    return lowbias32(lowbias32(tokens ^ np.uint32(key & 0xFFFFFFFF)) ^ np.uint32(key >> 32))


def gumbel(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Turn random bits into standard Gumbel noise, all in float32.

    u -> 0 gives the large values; there the exponential variate is taken by its series, because 1 - u would round.
    u can round to 1: the noise is then -inf, and the token is never chosen.
    """
    u = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    with np.errstate(divide="ignore"):
        exact = -np.log(np.float32(1.0) - u)
        series = u * (np.float32(1.0) + u * (np.float32(0.5) + u / np.float32(3.0)))
        noise: npt.NDArray[np.float32] = -np.log(np.where(u < np.float32(1e-3), series, exact))
    return noise
