"""Paged attention of a whole step: which kernel computes which rows, with scratch for all of them.

In a decode step every row's context is shared out over some programs. In a mixed step the host lists what there is to
do: two kernels run, one over the rows that decode and short chunks, the other over prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from app.kernels.ops import PagedBatch, pad_rows
from app.kernels.triton.attention.attention_configs import (
    DETERMINISTIC_SPLIT_TOKENS,
    AttentionConfig,
    Kind,
    attention_config,
)
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.piece_attention import piece_attention, piece_scratch_sizes
from app.kernels.triton.attention.prefill_attention import prefill_attention
from app.kernels.triton.attention.work import HEADER, PIECE_WIDTH, TILE_WIDTH, MixedWork


class PagedAttention:
    """Attention over the paged cache for steps of up to `max_rows` sequences and `max_tokens` rows. Engine thread only.

    Contexts are at most `max_context` tokens long. `mixed_work` makes the lists of mixed steps. `num_processors` are
    the GPU's.
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
        max_tokens: int | None = None,
        max_context: int,
        num_processors: int,
        capability: tuple[int, int],
        is_deterministic: bool,
    ) -> None:
        self._split_tokens = DETERMINISTIC_SPLIT_TOKENS if is_deterministic else None
        facts = (head_dim, dtype, cache_dtype, capability)

        def config(kind: Kind) -> AttentionConfig:
            return attention_config("deterministic" if is_deterministic else kind, *facts)

        self.grids = grids = AttentionGrids(
            num_heads // num_kv_heads,
            num_kv_heads,
            num_processors,
            config("decode"),
            config("pieces"),
            config("prefill"),
            self._split_tokens,
        )
        self.mixed_work = MixedWork(grids, max_rows, pad_rows(max_tokens or max_rows))
        sizes = [
            scratch_sizes(rows, num_heads, num_kv_heads, head_dim, grids.all_decode_splits(rows, max_context)[-1])
            for rows in range(1, max_rows + 1)
        ]
        num_slots = self.mixed_work.sizes.slots
        sizes.append(piece_scratch_sizes(num_slots, num_kv_heads, head_dim, grids.pieces.block_m))
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
        softcap: float | None = None,
        *,
        out: Tensor,
    ) -> None:
        """Compute `Ops.paged_attention`."""
        step = (q_TNH, k_cache_BKGH, v_cache_BKGH, batch.block_tables_SB, batch.positions_T, batch.state_rows_T)
        work, grids = batch.work, self.grids
        if work is None:
            decode_attention(
                *step, scale, window, softcap, partials=self._partials, counters=self._counters,
                num_splits=batch.num_splits, config=grids.decode,
                min_tokens=grids.least_split(len(q_TNH), batch.num_splits), split_tokens=self._split_tokens, out=out,
            )  # fmt: skip
            return
        sizes = self.mixed_work.sizes
        pieces_PX = work[HEADER : sizes.first_tile].view(-1, PIECE_WIDTH)
        tiles_TX = work[sizes.first_tile :].view(-1, TILE_WIDTH)
        piece_attention(
            *step, work, pieces_PX, scale, window, softcap, partials=self._partials, counters=self._counters,
            num_programs=batch.num_splits, config=grids.pieces, split_tokens=self._split_tokens, out=out,
        )  # fmt: skip
        prefill_attention(
            *step, work, tiles_TX, scale, window, softcap, num_programs=grids.tile_programs(len(q_TNH)),
            config=grids.prefill, split_tokens=self._split_tokens, out=out,
        )  # fmt: skip
