"""The steps of tests/kernels/batches.py in the format of the GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention.work import MixedWork, Sizes, Work
from app.kernels.triton.row_layout import TABLE, row_width
from tests.kernels.batches import Heads, Step, make_step
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def device_batch(
    chunks: Sequence[tuple[int, int]],
    heads: Heads,
    *,
    num_rows: int | None = None,
    work: MixedWork | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[PagedBatch, Step]:
    """The batch of a step of `num_rows` rows in the format of the GPU kernels, and the same step for `ReferenceOps`.

    Chunks are given as (tokens before, new tokens). With `work` the batch has the lists of attention's work;
    without, each must have one row. The kernels' batch is on DEVICE, its block tables are part of a tensor of state
    rows; the step is on the CPU. In both, the rows after the last chunk are padding.
    """
    step = make_step(chunks, heads, block_size=block_size, dtype=dtype)
    plain = step.batch
    num_tokens = plain.num_tokens
    num_padding = (num_rows or num_tokens) - num_tokens
    assert num_padding >= 0 and (work or all(new == 1 for _, new in chunks))
    positions = torch.cat([plain.positions_T[:num_tokens], torch.full((num_padding,), -1)])
    rows = torch.cat([plain.state_rows_T[:num_tokens], torch.zeros(num_padding, dtype=torch.int64)])
    max_blocks = plain.block_tables_SB.shape[1]
    state_SW = torch.full((len(plain.block_tables_SB), row_width(max_blocks)), 1 << 30, dtype=torch.int32)
    state_SW[:, TABLE : TABLE + max_blocks] = plain.block_tables_SB
    lists, num_splits = None, 1
    if work is not None:
        starts, counts = zip(*chunks, strict=True) if chunks else ((), ())
        made = work.of(starts, counts, num_tokens + num_padding)
        lists, num_splits = work_tensor(made, work.sizes), made.num_programs
    batch = PagedBatch(
        num_tokens + num_padding,
        positions.int().to(DEVICE),
        rows.int().to(DEVICE),
        state_SW.to(DEVICE)[:, TABLE : TABLE + max_blocks],
        block_size,
        lists,
        num_splits,
    )
    step.batch = PagedBatch(num_tokens, positions.clamp(min=0), rows, plain.block_tables_SB, block_size)
    return batch, step


def work_tensor(made: Work, sizes: Sizes) -> torch.Tensor:
    """The lists as they lie on the device; what is behind them is poison."""
    numbers = torch.full((sizes.length,), 1 << 30, dtype=torch.int32)
    for begin, run in made.numbers(sizes):
        numbers[begin : begin + len(run)] = torch.from_numpy(run)
    return numbers.to(DEVICE)


def poison_unused(step: Step) -> None:
    """Put NaN into every slot of the cache without a token of the step: no kernel may read them."""
    batch, used = step.batch, torch.zeros(step.k_cache_BKGH.shape[:2], dtype=torch.bool)
    for row in batch.state_rows_T[: batch.num_tokens].unique():
        positions = batch.positions_T[: batch.num_tokens][batch.state_rows_T[: batch.num_tokens] == row]
        tokens = torch.arange(int(positions.max()) + 1)
        used[batch.block_tables_SB[row].long()[tokens // batch.block_size], tokens % batch.block_size] = True
    step.k_cache_BKGH, step.v_cache_BKGH = (
        torch.where(used[..., None, None], cache.float(), float("nan")).to(cache.dtype)
        for cache in (step.k_cache_BKGH, step.v_cache_BKGH)
    )


def reference_attention(
    step: Step, q_TNH: torch.Tensor, scale: float, window: int | None, softcap: float | None = None
) -> torch.Tensor:
    """The result of `ReferenceOps` in float32, on DEVICE."""
    reference, expected = ReferenceOps(), torch.empty(q_TNH.shape)
    reference.begin_step(step.batch)
    k, v = step.k_cache_BKGH.float(), step.v_cache_BKGH.float()
    reference.paged_attention(q_TNH.cpu().float(), k, v, scale, window, softcap, out=expected)
    return expected.to(DEVICE)
