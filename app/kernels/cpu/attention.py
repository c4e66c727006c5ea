"""Paged attention on the CPU in eager torch: gather a few sequences' keys and values, then batched products.

The context is cut into tiles of TILE tokens aligned to position 0. Scores never mix tiles; the softmax runs over the
tiles in order; the weighted sum of values is taken tile by tile in order. Padding tiles contribute exact zeros. So the
bits of a row depend on its query, its keys and its position, not on how rows were grouped.

A *group* is a set of sequences whose keys are gathered together; a *query tile* is up to QUERY_TILE rows of each.
Heads that share a key head become extra query rows (grouped-query attention by folding).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.kernels.cpu.scratch import Scratch
from app.kernels.ops import PagedBatch, pad_rows

TILE = 128
QUERY_TILE = 128
# Keys gathered at once: more would leave the cache before the products read them.
GATHER_TOKENS = 8192

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class QueryTile:
    """`num_rows` consecutive token rows of each sequence of a group.

    `token_rows` [sequences · num_rows] index the step's token rows; `positions` [sequences, num_rows] are theirs.
    `length` is the number of context slots looked at, a multiple of TILE.
    """

    token_rows: Tensor
    positions: Tensor
    num_rows: int
    length: int
    masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def hidden(self, window: int | None, repeats: int) -> Tensor:
        """Return where attention must not look: bool [sequences, 1, padded rows, length]; made once per step.

        Each row stands `repeats` times (folded heads); the padding repeats the last row, which keeps it finite.
        """
        key = (window, repeats)
        if key not in self.masks:
            slots = torch.arange(self.length)
            rows = self.positions.repeat_interleave(repeats, dim=1)
            num_padding = pad_rows(rows.shape[1]) - rows.shape[1]
            rows = torch.cat([rows, rows[:, -1:].expand(-1, num_padding)], dim=1)[:, None, :, None]
            hidden = slots > rows
            if window is not None:
                hidden |= slots <= rows - window
            self.masks[key] = hidden
        return self.masks[key]


@dataclass(slots=True)
class Group:
    """Sequences gathered together: `blocks` [num_sequences · length / block_size], 0 where there is none."""

    blocks: Tensor
    num_sequences: int
    length: int
    tiles: list[QueryTile]


class AttentionPlan:
    """The plan that all layers of a step share: cache slots of the new tokens, rotation rows, groups."""

    def __init__(self, batch: PagedBatch) -> None:
        real, block_size = batch.num_tokens, batch.block_size
        self.num_tokens = real
        positions: Ints = batch.positions_T[:real].numpy()
        state_rows: Ints = batch.state_rows_T[:real].numpy()
        tables = batch.block_tables_SB.numpy()
        blocks = tables[state_rows, positions // block_size].astype(np.int64)
        self.slots = torch.from_numpy(blocks * block_size + positions % block_size)
        self.groups = _group(positions, state_rows, tables, block_size)
        self._positions = batch.positions_T
        self._rope: tuple[Tensor, tuple[Tensor, Tensor]] | None = None

    def rope(self, rope_PH: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, 1, H/2] of the step's positions; looked up once per step and table."""
        if self._rope is None or self._rope[0] is not rope_PH:
            cos, sin = rope_PH[self._positions][:, None].chunk(2, dim=-1)
            self._rope = (rope_PH, (cos.contiguous(), sin.contiguous()))
        return self._rope[1]

    def query_scale(self, scale_P: Tensor) -> Tensor:
        """Return the factors [T, 1, 1] of the step's positions."""
        return scale_P[self._positions][:, None, None]


def paged_attention(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    scale: float,
    plan: AttentionPlan,
    window: int | None,
    softcap: float | None,
    scratch: Scratch,
    out: Tensor,
) -> None:
    """Attend (see Ops.paged_attention); rows outside the plan's groups are left alone."""
    for group in plan.groups:
        k = _gather("k", k_cache_BKGH, group, scratch)
        v = _gather("v", v_cache_BKGH, group, scratch)
        for tile in group.tiles:
            _attend(q_TNH, k, v, scale, tile, window, softcap, scratch, out)


def _gather(name: str, cache_BKGH: Tensor, group: Group, scratch: Scratch) -> Tensor:
    """Copy a group's slots to float32 [sequences, G, length, H]."""
    _, block_size, num_kv_heads, head_dim = cache_BKGH.shape
    taken = scratch.get(name + "_blocks", (len(group.blocks), block_size, num_kv_heads, head_dim), cache_BKGH.dtype)
    torch.index_select(cache_BKGH, 0, group.blocks, out=taken)
    heads = scratch.get(name, (group.num_sequences, num_kv_heads, group.length, head_dim), torch.float32)
    heads.copy_(taken.view(group.num_sequences, group.length, num_kv_heads, head_dim).transpose(1, 2))
    return heads


def _attend(
    q_TNH: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    tile: QueryTile,
    window: int | None,
    softcap: float | None,
    scratch: Scratch,
    out: Tensor,
) -> None:
    num_sequences, num_kv_heads, _, head_dim = k.shape
    repeats = q_TNH.shape[1] // num_kv_heads
    folded, padded = tile.num_rows * repeats, pad_rows(tile.num_rows * repeats)
    # Folding: [sequences, rows, G, repeats, H] <-> [sequences, G, rows · repeats, H].
    unfolded = (num_sequences, tile.num_rows, num_kv_heads, repeats, head_dim)
    q = scratch.get("q", (num_sequences, num_kv_heads, padded, head_dim), torch.float32)
    q[:, :, folded:].zero_()
    rows = q_TNH[tile.token_rows].view(unfolded).transpose(1, 2)
    q[:, :, :folded].view(num_sequences, num_kv_heads, tile.num_rows, repeats, head_dim).copy_(rows)
    q.mul_(scale)

    batch = num_sequences * num_kv_heads
    q_flat, k_flat, v_flat = q.view(batch, padded, head_dim), k.flatten(0, 1), v.flatten(0, 1)
    scores = scratch.get("scores", (batch, padded, tile.length), torch.float32)
    torch.bmm(q_flat, k_flat[:, : tile.length].transpose(1, 2), out=scores)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    grouped = scores.view(num_sequences, num_kv_heads, padded, tile.length)
    grouped.masked_fill_(tile.hidden(window, repeats), float("-inf"))
    weights = scratch.get("weights", scores.shape, torch.float32)
    torch.softmax(scores, dim=-1, out=weights)
    summed = scratch.get("summed", (batch, padded, head_dim), torch.float32)
    summed.zero_()
    for first in range(0, tile.length, TILE):
        summed.baddbmm_(weights[:, :, first : first + TILE], v_flat[:, first : first + TILE])
    result = summed.view(num_sequences, num_kv_heads, padded, head_dim)[:, :, :folded]
    result = result.view(num_sequences, num_kv_heads, tile.num_rows, repeats, head_dim).transpose(1, 2)
    out[tile.token_rows] = result.reshape(-1, q_TNH.shape[1], head_dim).to(out.dtype)


def _group(positions: Ints, state_rows: Ints, tables: npt.NDArray[np.int32], block_size: int) -> list[Group]:
    """Cut the step into groups: sequences with one new token together by length, every other sequence alone."""
    if len(positions) == 0:
        return []
    starts = np.flatnonzero(np.diff(state_rows, prepend=-1))
    counts = np.diff(starts, append=len(state_rows))
    lengths = _round_up(positions[starts + counts - 1] + 1, TILE)
    groups = [
        _prefill_group(int(start), int(count), positions, tables[state_rows[start]], block_size)
        for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True)
    ]
    single = np.flatnonzero(counts == 1)
    single = single[np.argsort(-lengths[single], kind="stable")]
    while len(single):
        longest = int(lengths[single[0]])
        # Sequences of less than half the length would mostly gather padding.
        fitting = int(np.count_nonzero(lengths[single] * 2 >= longest))
        taken, single = np.split(single, [min(fitting, max(1, GATHER_TOKENS // longest))])
        groups.append(_decode_group(starts[taken], longest, positions, tables[state_rows[starts[taken]]], block_size))
    return groups


def _prefill_group(start: int, count: int, positions: Ints, table: npt.NDArray[np.int32], block_size: int) -> Group:
    tiles = []
    for first in range(start, start + count, QUERY_TILE):
        rows = np.arange(first, min(first + QUERY_TILE, start + count))
        length = int(_round_up(positions[rows[-1]] + 1, TILE))
        tiles.append(
            QueryTile(torch.from_numpy(rows), torch.from_numpy(positions[rows][None].copy()), len(rows), length)
        )
    return Group(_blocks(table[None], tiles[-1].length, block_size), 1, tiles[-1].length, tiles)


def _decode_group(starts: Ints, length: int, positions: Ints, tables: npt.NDArray[np.int32], block_size: int) -> Group:
    tile = QueryTile(torch.from_numpy(starts), torch.from_numpy(positions[starts][:, None].copy()), 1, length)
    return Group(_blocks(tables, length, block_size), len(starts), length, [tile])


def _blocks(tables: npt.NDArray[np.int32], length: int, block_size: int) -> Tensor:
    """Take each table's first length / block_size entries, padded with the reserved block 0."""
    wanted = length // block_size
    blocks = np.zeros((len(tables), wanted), dtype=np.int64)
    available = min(wanted, tables.shape[1])
    blocks[:, :available] = tables[:, :available]
    return torch.from_numpy(blocks.reshape(-1))


def _round_up(value: Ints, multiple: int) -> Ints:
    return -(-value // multiple) * multiple
