"""Rotary position embedding tables: linear, llama3 and yarn scaling, divisors of the frequencies, or none.

The angles of a position do not depend on the length of the sequence, so cached keys stay valid.

The kernels turn number i of a head with number i + head_dim / 2. Where only the first numbers of a head turn, a
checkpoint pairs i with i + rotary_dim / 2, and some pair neighbours, 2 i with 2 i + 1: the loader puts the rows of
queries and keys into `head_order`, and pairs that do not turn have the angle 0. Products of queries and keys are the
same in any order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from app.checkpoint.spec import ModelSpec, RopeSpec


def rope_tables(
    spec: ModelSpec, num_positions: int, dtype: torch.dtype, device: torch.device | None = None
) -> tuple[Tensor, ...]:
    """Return a table for each of the spec's ropes, see `rope_table`."""
    return tuple(rope_table(rope, spec.head_dim, num_positions, dtype).to(device) for rope in spec.ropes)


def rope_table(spec: RopeSpec, head_dim: int, num_positions: int, dtype: torch.dtype) -> Tensor:
    """Return [positions, head_dim]: cos, then sin, of each position's head_dim / 2 angles."""
    angles = torch.arange(num_positions).float()[:, None] * inverse_frequencies(spec, head_dim)
    still = (0, head_dim // 2 - angles.shape[1])
    cos = torch.nn.functional.pad(angles.cos() * spec.attention_factor, still, value=1.0)
    sin = torch.nn.functional.pad(angles.sin() * spec.attention_factor, still)
    return torch.cat([cos, sin], dim=-1).to(dtype)


def query_scales(spec: ModelSpec, num_positions: int, device: torch.device | None = None) -> Tensor | None:
    """Return the factor of queries at each position (float32); None if all are 1."""
    scale = spec.query_scale
    if scale is None or num_positions <= scale.original_max_position:
        return None
    periods = torch.floor(torch.arange(num_positions) / scale.original_max_position)
    return (1 + scale.beta * torch.log(1 + periods)).to(device)


def head_order(spec: RopeSpec, head_dim: int) -> list[int] | None:
    """Return which of a checkpoint's rows stands at each place of a query or key head; None if all stay in place."""
    if spec.rotary_dim is None and not spec.has_neighbour_pairs:
        return None
    turning = spec.rotary_dim or head_dim
    half, middle = turning // 2, turning + (head_dim - turning) // 2
    firsts, seconds = range(half), range(half, turning)
    if spec.has_neighbour_pairs:
        firsts, seconds = range(0, turning, 2), range(1, turning, 2)
    return [*firsts, *range(turning, middle), *seconds, *range(middle, head_dim)]


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Return the angles per position of the pairs of a head's numbers that turn, in float32."""
    if spec.kind == "none":
        return torch.empty(0)
    head_dim = spec.rotary_dim or head_dim
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (spec.theta**exponents)
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "divisors":
        return 1.0 / (torch.tensor(spec.divisors) * spec.theta**exponents)
    if spec.kind == "llama3":
        return _llama3(spec, plain)
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
    """Keep fast dimensions and interpolate slow ones: NTK-by-parts (YaRN, arXiv 2309.00071)."""

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
