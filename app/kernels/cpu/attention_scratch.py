"""How much scratch memory native attention takes; mirrors native/attention.h, and a test compares the two."""

from __future__ import annotations

TILE = 256
MAX_PARTS = 17
TOGETHER = 128
SPLIT = 128


def scratch_floats(num_heads: int, num_kv_heads: int, head_dim: int, num_threads: int) -> int:
    """Return the floats of `Attention.parts` for up to `num_threads` threads; it depends on no length or batch size.

    Each thread has a workspace; wherever one's share of the work ends and the next one's begins, they leave each other
    the parts of one long context.
    """
    padded = _round_up(head_dim, 32)
    together = max(TOGETHER, _round_up(num_heads // num_kv_heads, 16))
    split = max(SPLIT, _round_up(num_heads, 16))
    workspace = together * (padded + 3 + 3 * TILE) + TILE * padded + 2 * together * (padded + 2)
    return num_threads * workspace + (num_threads - 1) * MAX_PARTS * split * (padded + 2)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
