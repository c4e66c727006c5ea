"""Norm, rotation and the writing of keys and values, compared with float64.

Bounds are for values of size 1: rounding of float32 sums, and of stored values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Cache, Code, Matrix, PagedRows
from tests.kernels.batches import Heads, make_step, noise

# name -> (cache, queries)
CACHES = {
    "float32": (torch.float32, torch.float32),
    "float16": (torch.float16, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "int8 of float32": (torch.int8, torch.float32),
    "int8 of bfloat16": (torch.int8, torch.bfloat16),
}
ERRORS = {torch.float32: 4e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
HEADS = [
    Heads(9, 3, 64),
    Heads(2, 1, 128),
    Heads(2, 1, 256),
    Heads(3, 1, 80),
    Heads(4, 2, 24),
    Heads(1, 1, 2),
    Heads(2, 2, 10),
]
CHUNKS = [(0, 1), (7, 1), (8, 1), (63, 2), (0, 37), (300, 20), (1000, 1)]
EPS = 1e-6

Chunks = Sequence[tuple[int, int]]


@dataclass
class Call:
    """One call of the kernel: its inputs and outputs."""

    positions: Tensor  # [T]
    slots: Tensor  # [T]
    qkv: Tensor  # [T, N + 2 G, H]
    norm: Tensor | None  # [N + G, H]
    rope: Tensor  # [positions, H]
    query_scale: Tensor | None  # [positions]
    caches: Tensor  # [B, 2, K, G, H]; H + 4 bytes if int8
    queries: Tensor  # [T, N * H and padding]

    def written(self, half: int) -> Tensor:
        """The keys (0) or values (1) of the step's tokens, [T, G, H]."""
        flat = self.caches[:, half].flatten(0, 1)
        return flat[self.slots]

    def rotated(self) -> Tensor:
        """The expected queries and keys, [T, N + G, H], in float64."""
        num_kv_heads = self.caches.shape[3]
        heads = self.qkv[:, :-num_kv_heads].double()
        if self.norm is not None:
            heads = heads / (heads.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        cos, sin = self.rope[self.positions][:, None].double().chunk(2, dim=-1)
        first, second = heads.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        if self.query_scale is not None:
            rotated[:, :-num_kv_heads] *= self.query_scale[self.positions].double()[:, None, None]
        return rotated


def call(
    library: NativeLibrary,
    chunks: Chunks,
    heads: Heads,
    kind: str,
    *,
    is_normed: bool = False,
    is_scaled: bool = False,
    block_size: int = 16,
    num_threads: int = 2,
    qkv: Tensor | None = None,
) -> Call:
    """Rotate the rows of a step; memory that must not be written is NaN."""
    stored, dtype = CACHES[kind]
    batch = make_step(chunks, heads, block_size=block_size).batch
    num_rows = batch.num_tokens
    positions, state_rows = batch.positions_T[:num_rows], batch.state_rows_T[:num_rows]
    blocks = batch.block_tables_SB[state_rows, positions // block_size].long()
    num_heads = heads.num_heads + 2 * heads.num_kv_heads
    rows = torch.full((num_rows, num_heads * heads.head_dim + 24), torch.nan)
    found = noise(num_rows, num_heads, heads.head_dim) if qkv is None else qkv
    rows[:, : num_heads * heads.head_dim] = found.flatten(1)
    angles = noise(1100, heads.head_dim // 2, seed=1)
    width = heads.head_dim + 4 * (stored == torch.int8)
    num_blocks = int(batch.block_tables_SB.max()) + 2
    caches = torch.empty(num_blocks, 2, block_size, heads.num_kv_heads, width, dtype=stored)
    caches.view(torch.uint8).fill_(0xFF)
    norm = noise(heads.num_heads + heads.num_kv_heads, heads.head_dim, seed=2) if is_normed else None
    queries = torch.full((num_rows, heads.num_heads * heads.head_dim + 40), torch.nan, dtype=dtype)
    rope = torch.cat([angles.cos(), angles.sin()], dim=1)
    query_scale = noise(len(rope), seed=3) if is_scaled else None
    tables = batch.block_tables_SB
    fields = records.Rotate(
        qkv=Matrix.of(rows) if num_rows else Matrix(),
        norm_weight=None if norm is None else norm.data_ptr(),
        rope=rope.data_ptr(),
        query_scale=None if query_scale is None else query_scale.data_ptr(),
        paged_rows=PagedRows(
            batch.positions_T.data_ptr(),
            batch.state_rows_T.data_ptr(),
            tables.data_ptr(),
            tables.stride(0),
            block_size,
        ),
        keys=Cache.of(caches[:, 0]),
        values=Cache.of(caches[:, 1]),
        queries=Matrix.of(queries) if num_rows else Matrix(type=records.TYPES[dtype]),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        eps=EPS,
    )
    library.run(Code.ROTATE, fields, num_rows, num_threads)
    return Call(
        positions, blocks * block_size + positions % block_size, found, norm, rope, query_scale, caches, queries
    )


def split_scale(heads: Tensor) -> tuple[Tensor, Tensor]:
    """The integers and the scale of int8 heads, both float32."""
    scale = heads[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return heads[..., :-4].float(), scale


@pytest.mark.parametrize("is_scaled", [False, True], ids=["", "queries scaled"])
@pytest.mark.parametrize("is_normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("kind", CACHES)
def test_queries_keys_and_values_are_close_to_float64(
    kind: str, is_normed: bool, is_scaled: bool, library: NativeLibrary
):
    stored, dtype = CACHES[kind]
    for turn, heads in enumerate(HEADS):
        block_size = (8, 16, 32, 64, 128)[turn % 5]
        how = {"is_normed": is_normed, "is_scaled": is_scaled}
        done = call(library, CHUNKS, heads, kind, **how, block_size=block_size)
        rotated, size = done.rotated(), heads.num_heads * heads.head_dim
        queries, keys = rotated[:, : heads.num_heads], rotated[:, heads.num_heads :]
        values = done.qkv[:, -heads.num_kv_heads :].double()
        error = ERRORS[dtype] * rotated.abs().max()
        assert (done.queries[:, :size] - queries.flatten(1)).abs().max() < error
        assert done.queries[:, size:].isnan().all()
        for half, wanted in enumerate((keys, values)):
            found = done.written(half)
            if stored == torch.int8:
                integers, scale = split_scale(found)
                torch.testing.assert_close(scale, wanted.float().abs().amax(-1, keepdim=True) / 127)
                assert (integers.abs().amax(-1) == 127).all()
                assert ((integers * scale - wanted).abs() < 0.5001 * scale).all()
            else:
                assert (found - wanted).abs().max() < ERRORS[stored] * wanted.abs().max()


@pytest.mark.parametrize("kind", CACHES)
def test_only_the_slots_of_the_steps_tokens_are_written(kind: str, library: NativeLibrary):
    for heads in HEADS:
        done = call(library, CHUNKS, heads, kind)
        others = torch.ones(done.caches.shape[0] * done.caches.shape[2], dtype=torch.bool)
        others[done.slots] = False
        for half in (0, 1):
            left = done.caches[:, half].flatten(0, 1)[others].contiguous()
            assert (left.view(torch.uint8) == 0xFF).all()


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("is_changed", [False, True], ids=["plain", "normed and scaled"])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(is_changed: bool, kind: str, library: NativeLibrary):
    how = {"is_normed": is_changed, "is_scaled": is_changed}
    for heads in HEADS:
        num_rows, num_heads = sum(new for _, new in CHUNKS), heads.num_heads + 2 * heads.num_kv_heads
        qkv = noise(num_rows, num_heads, heads.head_dim)
        together = call(library, CHUNKS, heads, kind, **how, num_threads=3, block_size=8, qkv=qkv)
        row = 0
        for start, new in CHUNKS:
            alone = call(library, [(start, 1)], heads, kind, **how, num_threads=1, qkv=qkv[row : row + 1])
            size = heads.num_heads * heads.head_dim
            assert torch.equal(alone.queries[0, :size], together.queries[row, :size])
            for half in (0, 1):
                assert torch.equal(alone.written(half)[0], together.written(half)[row])
            row += new


@pytest.mark.parametrize("kind", CACHES)
def test_values_that_overflow_are_stored_as_numbers(kind: str, library: NativeLibrary):
    """A later sequence may multiply them by zero, in slots of the block that it has not written."""
    stored, _ = CACHES[kind]
    for heads in (Heads(1, 1, 64), Heads(1, 1, 10)):
        qkv = noise(1, 3, heads.head_dim)
        qkv[0, 2, :5] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38, 0.5])
        values = call(library, [(5, 1)], heads, kind, qkv=qkv).written(1)[0, 0]
        if stored == torch.int8:
            integers, scale = split_scale(values)
            assert integers[:5].tolist() == [127, -127, 0, 127, 0] and scale.isfinite().all()
        else:
            largest = torch.finfo(stored).max
            assert values[:2].tolist() == [largest, -largest] and values[2] == 0 and values[3] > 6e4
            torch.testing.assert_close(values[4:].float(), qkv[0, 2, 4:], rtol=2**-8, atol=0)
            assert values.isfinite().all()


def test_int8_heads_of_tiny_values_stay_finite(library: NativeLibrary):
    for size in (0.0, 1e-44, 1e-38, 1e-30):
        qkv = torch.full((1, 3, 64), size)
        done = call(library, [(5, 1)], Heads(1, 1, 64), "int8 of float32", qkv=qkv)
        for half in (0, 1):
            integers, scale = split_scale(done.written(half)[0, 0])
            assert scale.isfinite().all() and (integers.abs() <= 127).all()
            assert (integers * scale - size).abs().max() <= 3 * size + 1e-36


def test_a_step_without_rows_writes_nothing(library: NativeLibrary):
    for kind in CACHES:
        done = call(library, [], HEADS[0], kind)
        assert (done.caches.view(torch.uint8) == 0xFF).all()
