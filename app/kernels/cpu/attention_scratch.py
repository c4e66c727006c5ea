"""How much scratch memory native attention takes; mirrors native/attention.h."""

from __future__ import annotations

GROUP = 16
TILE = 256
PARTS = 16
MAX_PARTS = PARTS + 1
TOGETHER = 64
SPLIT = 256


def scratch_floats(num_heads: int, num_kv_heads: int, head_dim: int, num_threads: int) -> int:
    """Return the floats of `Attention.parts` for up to `num_threads` threads."""
    padded = _round_up(head_dim, 32)
    repeats = num_heads // num_kv_heads
    together = max(TOGETHER, _round_up(repeats, 16))
    split = max(SPLIT, _round_up(num_heads, 16))
    workspace = together * (padded + 3 + 3 * TILE) + (GROUP + TILE) * padded + 2 * together * (padded + 2)
    return num_threads * workspace + (num_threads - 1) * MAX_PARTS * split * (padded + 2)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
