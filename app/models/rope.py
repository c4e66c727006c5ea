"""Rotary position embedding tables: linear, llama3 and yarn scaling, or divisors.

The angles of a position do not depend on the length of the sequence, so cached keys stay valid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from app.checkpoint.spec import RopeSpec


def rope_table(spec: RopeSpec, head_dim: int, num_positions: int, dtype: torch.dtype) -> Tensor:
    """Return [positions, head_dim]: cos, then sin, of each position's head_dim / 2 angles."""
    angles = torch.arange(num_positions).float()[:, None] * inverse_frequencies(spec, head_dim)
    return torch.cat([angles.cos() * spec.attention_factor, angles.sin() * spec.attention_factor], dim=-1).to(dtype)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Return the head_dim / 2 angles per position, in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (spec.theta**exponents)
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "divisors":
        return plain / torch.tensor(spec.divisors)
    if spec.kind == "yarn":
        return _yarn(spec, plain, spec.theta**exponents, head_dim)
    return plain


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Divide slow angles by the factor, keep fast ones, and interpolate between the two (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    low = spec.original_max_position / spec.low_freq_factor
    high = spec.original_max_position / spec.high_freq_factor
    blend = (spec.original_max_position / wavelength - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    blended = (1 - blend) * plain / spec.factor + blend * plain
    result = torch.where(wavelength > low, plain / spec.factor, plain)
    return torch.where((wavelength <= low) & (wavelength >= high), blended, result)


def _yarn(spec: RopeSpec, plain: Tensor, powers: Tensor, head_dim: int) -> Tensor:
    """NTK-by-parts (YaRN, arXiv 2309.00071): keep fast dimensions, interpolate slow ones."""

    def dimension(rotations: float) -> float:
        turns = spec.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    keep = 1 - torch.clamp((torch.arange(head_dim // 2).float() - low) / width, 0, 1)
    return 1.0 / (spec.factor * powers) * (1 - keep) + plain * keep
