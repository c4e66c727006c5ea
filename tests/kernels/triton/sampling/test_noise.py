"""The noise on the GPU, or in the interpreter, compared with the noise vector and the noise of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from app.engine.execute.noise import gumbel, noise_bits
from app.kernels.triton.sampling import noise
from tests.engine.execute.noise_vector import NOISE_VECTOR, ULP
from tests.kernels.triton.sampling_rows import DEVICE, signed


@triton.jit
def _noise_kernel(key, tokens, bits_out, u_out, noise_out, count, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < count
    token = tl.load(tokens + offsets, mask=mask, other=0)
    low, high, choice, position = tl.load(key), tl.load(key + 1), tl.load(key + 2), tl.load(key + 3)
    bits = noise.noise_bits(low, high, choice, position, token)
    tl.store(bits_out + offsets, bits.to(tl.int32, bitcast=True), mask=mask)
    tl.store(u_out + offsets, noise.uniform(bits), mask=mask)
    tl.store(noise_out + offsets, noise.gumbel_noise(low, high, choice, position, token), mask=mask)


def on_device(seed, choice, position, tokens):
    """Bits, u and noise of each token."""
    key = torch.tensor([signed(seed), signed(seed >> 32), choice, position], dtype=torch.int32, device=DEVICE)
    ids = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)
    bits = torch.full_like(ids, -1)
    u, values = torch.full((2, len(ids)), torch.nan, device=DEVICE)
    _noise_kernel[(1,)](key, ids, bits, u, values, len(ids), BLOCK=triton.next_power_of_2(len(ids)))
    return bits.cpu().numpy().view(np.uint32), u.cpu().numpy(), values.cpu().numpy()


def u_of(bits):
    """The uniform number of the CPU."""
    return (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


def assert_close(values, expected):
    """Within 2 units in the last place of 1, or of the noise if it is larger; -inf only where that is expected."""
    finite = np.isfinite(expected)
    assert (values[~finite] == expected[~finite]).all()
    values, expected = values[finite], expected[finite]
    assert (abs(values - expected) <= 2 * ULP * np.maximum(1.0, abs(expected))).all()


@pytest.mark.parametrize("key", NOISE_VECTOR)
def test_the_noise_vector_is_the_same_on_the_device(key):
    expected_bits, expected = NOISE_VECTOR[key]
    bits, u, values = on_device(*key[:3], [key[3]])
    assert bits[0] == expected_bits
    assert u[0] == u_of(bits)[0]
    assert_close(values, gumbel(bits))
    assert values[0] == expected or abs(values[0] - expected) <= 4 * ULP * max(1.0, abs(expected))


@pytest.mark.parametrize(
    ("seed", "choice", "position"),
    [(0, 0, 0), (-(2**63), 0, 1), (2**63 + 12345, 15, 2**31 - 1), (987654321987, 2, 77)],
)
def test_noise_equals_that_of_the_cpu_for_every_seed(seed, choice, position):
    tokens = np.random.default_rng(choice).integers(0, 262_144, 4000)
    bits, u, values = on_device(seed, choice, position, tokens.tolist())
    expected = noise_bits(seed, choice, position, tokens.astype(np.uint32))
    assert (bits == expected).all()
    assert (u == u_of(expected)).all()
    assert_close(values, gumbel(expected))
