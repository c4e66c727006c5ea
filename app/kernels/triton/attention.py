"""Paged attention of a whole step: which kernel computes which rows, with scratch for all of them.

Sequences with one row in the step (decoding) share out their contexts over many programs; those with more (prompts,
guesses) have enough rows for tiles of their own. In a mixed step both kernels run, each over its part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention_configs import DETERMINISTIC_SPLIT_TOKENS, attention_config
from app.kernels.triton.decode_attention import choose_num_splits, decode_attention, scratch_sizes
from app.kernels.triton.prefill_attention import prefill_attention

# Of deterministic attention: how many splits are computed side by side. Longer contexts are as right, and slower; more
# programs than there is work for cost time too.
DETERMINISTIC_MIN_SPLITS, DETERMINISTIC_MAX_SPLITS = 8, 64
SPLITS_PER_PROCESSOR = 16


class PagedAttention:
    """Attention over the paged cache for steps of up to `max_rows` sequences. Engine thread only.

    `num_processors` are the GPU's; keys and values in the cache times `k_scale` and `v_scale` are the real ones.
    """

    def __init__(
        self,
        place: torch.device,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        max_rows: int,
        num_processors: int,
        capability: tuple[int, int],
        is_deterministic: bool,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        self._num_kv_heads, self._num_processors, self._max_rows = num_kv_heads, num_processors, max_rows
        self._split_tokens = DETERMINISTIC_SPLIT_TOKENS if is_deterministic else None
        self.k_scale, self.v_scale = k_scale, v_scale
        facts = (head_dim, dtype, cache_dtype, capability)
        self._decode = attention_config("deterministic" if is_deterministic else "decode", *facts)
        self._prefill = attention_config("deterministic" if is_deterministic else "prefill", *facts)
        sizes = [
            scratch_sizes(rows, num_heads, num_kv_heads, head_dim, self._num_splits(rows))
            for rows in range(1, max_rows + 1)
        ]
        self._partials = torch.empty(max(size for size, _ in sizes), dtype=torch.float32, device=place)
        self._counters = torch.zeros(max(size for _, size in sizes), dtype=torch.int32, device=place)

    @property
    def num_bytes(self) -> int:
        """Memory that the scratch takes."""
        return int(self._partials.nbytes + self._counters.nbytes)

    def attend(
        self,
        q_TNH: Tensor,
        k_cache_BKGH: Tensor,
        v_cache_BKGH: Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None,
        *,
        out: Tensor,
    ) -> None:
        """See Ops.paged_attention."""
        where = (batch.block_tables_SB, batch.positions_T, batch.state_rows_T)
        starts_C = batch.chunk_starts_C
        decode_attention(
            q_TNH, k_cache_BKGH, v_cache_BKGH, *where, scale, window,
            partials=self._partials,
            counters=self._counters,
            num_splits=self._num_splits(len(q_TNH) if starts_C is None else len(starts_C) - 1),
            config=self._decode,
            chunk_starts_C=starts_C,
            split_tokens=self._split_tokens,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            out=out,
        )  # fmt: skip
        if starts_C is not None:
            prefill_attention(
                q_TNH, k_cache_BKGH, v_cache_BKGH, *where, starts_C, scale, window,
                config=self._prefill, min_rows=2, split_tokens=self._split_tokens,
                k_scale=self.k_scale, v_scale=self.v_scale, out=out,
            )  # fmt: skip

    def _num_splits(self, num_rows: int) -> int:
        if self._split_tokens is not None:
            wanted = SPLITS_PER_PROCESSOR * self._num_processors // num_rows
            # Powers of two: each number of splits is compiled anew.
            power = 1 << wanted.bit_length() - 1 if wanted else 0
            return max(DETERMINISTIC_MIN_SPLITS, min(DETERMINISTIC_MAX_SPLITS, power))
        return choose_num_splits(num_rows, self._num_kv_heads, self._num_processors)
