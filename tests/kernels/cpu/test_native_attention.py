"""Native attention against float64, and bit for bit against itself.

Keys, values and queries of a sequence depend on its number and the position alone, so that the same row can stand in
any step. Whatever a step must not read is NaN: block 0, blocks of nobody, and blocks that no row of it sees.

Values are of size 1. Bounds on the error of their mean: rounding of sums for float32 and float16 caches; weights of 8
bits for bfloat16; queries and weights of 15 bits for int8 (the reference reads the same rounded keys and values).
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.attention_scratch import scratch_floats
from app.kernels.cpu.compiling import SOURCES, CannotCompile, find_compiler, supported_sets
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.records import Cache, Code, Matrix, Places
from tests.kernels.batches import Heads, make_step, noise

# name -> (cache, queries, bound)
CACHES = {
    "float32": (torch.float32, torch.float32, 1e-5),
    "float16": (torch.float16, torch.float32, 1e-5),
    "bfloat16": (torch.bfloat16, torch.bfloat16, 1e-2),
    "int8 of float32": (torch.int8, torch.float32, 2e-4),
    "int8 of bfloat16": (torch.int8, torch.bfloat16, 2e-4),
}
# 64 and 128 have paths of their own; 96 and 256 are whole vectors, 5, 16, 24 and 80 ragged ones.
HEADS = {
    "64": Heads(9, 3, 64),
    "64, 7 each": Heads(14, 2, 64),
    "64, own keys": Heads(2, 2, 64),
    "16, 71 each": Heads(71, 1, 16),
    "128": Heads(8, 2, 128),
    "256": Heads(2, 1, 256),
    "96": Heads(5, 1, 96),
    "80": Heads(4, 2, 80),
    "24": Heads(6, 2, 24),
    "16": Heads(3, 3, 16),
    "5": Heads(2, 1, 5),
}
WINDOWS = [0, 1, 7, 100, 700]
# (tokens before, new tokens) of each sequence.
STEPS = {
    "one token": [(0, 1)],
    "edges of runs, groups and tiles": [(n, 1) for n in (6, 7, 8, 15, 16, 17, 254, 255, 256, 257, 511, 512)],
    "a prompt": [(0, 300)],
    "chunks": [(77, 61), (250, 12), (500, 33)],
    "mixed": [(40, 1), (0, 20), (600, 1), (5, 11), (129, 1), (255, 3)],
}
LONGEST = 1700

Chunks = Sequence[tuple[int, int]]


@pytest.fixture(params=supported_sets(), scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The kernels for each instruction set of this machine."""
    loaded = load_library(request.param)
    if loaded is None:
        pytest.skip("there are no native kernels here")
    return loaded


def quantized(x: Tensor) -> Tensor:
    """Integers [..., head_dim] and the four bytes of their scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.cat([(x / scale).round().to(torch.int8), scale.view(torch.int8)], dim=-1)


def exact(x: Tensor) -> Tensor:
    """What a cache holds, in float64."""
    if x.dtype != torch.int8:
        return x.double()
    scale = x[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return x[..., :-4].double() * scale.double()


@cache
def normal(number: int, num_heads: int, head_dim: int) -> Tensor:
    """The same for all caches."""
    return noise(LONGEST, num_heads, head_dim, seed=number)


@cache
def sequence(number: int, heads: tuple[int, int, int], kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, and the cached keys and values, of the first LONGEST positions of a sequence."""
    num_heads, num_kv_heads, head_dim = heads
    stored, dtype, _ = CACHES[kind]
    queries = normal(3 * number, num_heads, head_dim).to(dtype)
    pair = (normal(3 * number + i, num_kv_heads, head_dim) for i in (1, 2))
    keys, values = (quantized(x) if stored == torch.int8 else x.to(stored) for x in pair)
    return queries, keys, values


@cache
def expected(number: int, start: int, new: int, heads: tuple[int, int, int], kind: str, window: int) -> Tensor:
    """Attention [new, N, H] of a sequence's rows, in float64."""
    queries, keys, values = (exact(x[: start + new]) for x in sequence(number, heads, kind))
    repeats = heads[0] // heads[1]
    keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
    rows, tokens = torch.arange(start, start + new)[:, None], torch.arange(start + new)
    hidden = tokens > rows
    if window:
        hidden |= tokens <= rows - window
    scores = torch.einsum("rnh,tnh->nrt", queries[start:], keys) * heads[2] ** -0.5
    return torch.einsum("nrt,tnh->rnh", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


@dataclass
class Layer:
    """What one call of the kernel reads and writes."""

    fields: records.Attention
    num_rows: int
    out: Tensor
    scratch: Tensor
    caches: Tensor
    kept: tuple[object, ...]

    def run(self, library: NativeLibrary, num_threads: int) -> Tensor:
        """Attention [rows, N, H]."""
        library.run(Code.ATTENTION, self.fields, self.num_rows, num_threads)
        library.run(Code.ATTENTION_MERGE, self.fields, self.num_rows, num_threads)
        num_heads, head_dim = self.fields.num_heads, self.fields.head_dim
        assert self.out[:, num_heads * head_dim :].isnan().all()
        return self.out[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim)).clone()


def make_layer(
    chunks: Chunks,
    heads: Heads,
    kind: str,
    *,
    window: int = 0,
    block_size: int = 16,
    num_threads: int = 2,
    numbers: Sequence[int] | None = None,
    out_dtype: torch.dtype = torch.float32,
    unseen: float = 1e4,
) -> Layer:
    """A step over sequences `numbers`; slots of their last blocks that hold nothing yet hold `unseen`."""
    key = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
    step = make_step(chunks, heads, block_size=block_size)
    batch, num_rows = step.batch, step.batch.num_tokens
    stored, dtype, _ = CACHES[kind]
    width = heads.head_dim + 4 * (stored == torch.int8)
    # Keys and values of a block lie side by side: a block's stride is not its size.
    caches = torch.empty(len(step.k_cache_BKGH), 2, block_size, heads.num_kv_heads, width, dtype=stored)
    caches.view(torch.uint8).fill_(0xFF)  # NaN in every type, and in scales
    queries = torch.full((num_rows, heads.num_heads * heads.head_dim + 24), torch.nan, dtype=dtype)
    row = 0
    for place, (start, new) in enumerate(chunks):
        own = sequence(place if numbers is None else numbers[place], key, kind)
        queries[row : row + new, : heads.num_heads * heads.head_dim] = own[0][start : start + new].flatten(1)
        first = max(0, start - window + 1) // block_size if window else 0
        table = batch.block_tables_SB[place + 1, first : (start + new - 1) // block_size + 1].long()
        for half, tokens in enumerate(own[1:]):
            garbage = torch.full((1, heads.num_kv_heads, heads.head_dim), unseen)
            rest = quantized(garbage) if stored == torch.int8 else garbage.to(stored)
            padded = torch.cat([tokens[first * block_size : start + new], rest.expand(block_size, -1, -1)])
            caches[table, half] = padded[: len(table) * block_size].unflatten(0, (-1, block_size))
        row += new
    out = torch.full((num_rows, heads.num_heads * heads.head_dim + 40), torch.nan, dtype=out_dtype)
    scratch = torch.full((scratch_floats(*key, num_threads) + 64,), torch.nan)
    places = Places(
        batch.positions_T.data_ptr(),
        batch.state_rows_T.data_ptr(),
        batch.block_tables_SB.data_ptr(),
        batch.block_tables_SB.stride(0),
        block_size,
    )
    fields = records.Attention(
        queries=Matrix.of(queries) if num_rows else Matrix(type=records.TYPES[dtype]),
        places=places,
        keys=Cache.of(caches[:, 0]),
        values=Cache.of(caches[:, 1]),
        out=Matrix.of(out) if num_rows else Matrix(type=records.TYPES[out_dtype]),
        parts=scratch.data_ptr(),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        window=window,
        scale=heads.head_dim**-0.5,
    )
    return Layer(fields, num_rows, out, scratch, caches, (batch, queries))


def attend(library: NativeLibrary, chunks: Chunks, heads: Heads, kind: str, **options: object) -> Tensor:
    """Attention of all rows of a step."""
    layer = make_layer(chunks, heads, kind, **options)  # type: ignore[arg-type]
    return layer.run(library, int(options.get("num_threads", 2)))  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", HEADS)
def test_every_type_width_and_window_gives_what_float64_gives(name: str, kind: str, library: NativeLibrary):
    heads, bound = HEADS[name], CACHES[kind][2]
    key = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
    for turn, (step, chunks) in enumerate(STEPS.items(), list(HEADS).index(name)):
        window, block_size = WINDOWS[turn % 5], (8, 16, 32, 64)[turn % 4]
        found = attend(library, chunks, heads, kind, window=window, block_size=block_size)
        wanted = torch.cat([expected(n, *chunk, key, kind, window) for n, chunk in enumerate(chunks)])
        assert (found - wanted).abs().max() < bound, f"{step}, window {window}, block size {block_size}"


@pytest.mark.parametrize("kind", CACHES)
def test_bfloat16_results_are_the_float32_ones_rounded(kind: str, library: NativeLibrary):
    for heads in (HEADS["64"], HEADS["24"]):
        exact_out = attend(library, STEPS["mixed"], heads, kind)
        rounded = attend(library, STEPS["mixed"], heads, kind, out_dtype=torch.bfloat16)
        assert torch.equal(rounded, exact_out.bfloat16())


@pytest.mark.parametrize("kind", CACHES)
def test_what_a_row_does_not_see_does_not_matter(kind: str, library: NativeLibrary):
    """Also not slots of its own last block: they may hold what their former owner left."""
    for heads in (HEADS["64"], HEADS["80"]):
        for window in (0, 19):
            calm, wild = (
                attend(library, STEPS["mixed"], heads, kind, window=window, block_size=64, unseen=unseen)
                for unseen in (0.0, -6e4)
            )
            assert torch.equal(calm, wild)


def test_a_step_without_rows_does_nothing(library: NativeLibrary):
    for kind in CACHES:
        assert attend(library, [], HEADS["64"], kind, num_threads=3).numel() == 0


@pytest.mark.parametrize("kind", CACHES)
def test_scores_of_hundreds_do_not_overflow(kind: str, library: NativeLibrary):
    """The largest score comes last, first, or in between; the weights of all others vanish."""
    heads = Heads(2, 1, 32)
    for at in (0, 255, 300, 599):
        layer = make_layer([(599, 1)], heads, kind)
        _, keys, _ = sequence(0, (2, 1, 32), kind)
        table = ctypes.cast(layer.fields.places.block_tables, ctypes.POINTER(ctypes.c_int32))
        block = table[layer.fields.places.table_stride + at // 16]
        queries = layer.kept[1]
        assert isinstance(queries, Tensor)
        query = exact(keys[at])[0].repeat(2)
        queries[0, :64] = (query * 400 / query.square().sum() * 2).to(queries.dtype)
        found = layer.run(library, 2)
        wanted = exact(layer.caches[block, 1, at % 16])[0].float()
        torch.testing.assert_close(found[0], wanted.expand(2, -1), rtol=0.02, atol=0.02)


# --- Bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CACHES)
@settings(max_examples=10)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_every_chunk_company_block_size_and_number_of_threads(
    kind: str, library: NativeLibrary, data: st.DataObject
):
    heads = data.draw(st.sampled_from([HEADS["64"], HEADS["64, 7 each"], HEADS["16"], HEADS["80"]]), label="heads")
    window = data.draw(st.sampled_from([0, 1, 100, 700]), label="window")
    edges = [15, 16, 255, 256, 511, 1023, LONGEST - 1]
    position = data.draw(st.sampled_from(edges) | st.integers(0, LONGEST - 1), label="position")
    before = data.draw(st.integers(0, min(position, 70)), label="rows before it in its chunk")
    after = data.draw(st.integers(0, min(LONGEST - 1 - position, 40)), label="rows after it in its chunk")
    others = data.draw(
        st.lists(st.tuples(st.integers(0, LONGEST - 9), st.sampled_from([1, 1, 1, 9])), max_size=6), label="others"
    )
    place = data.draw(st.integers(0, len(others)), label="sequences before it")
    block_size = data.draw(st.sampled_from([8, 16, 32, 64]), label="block size")
    num_threads = data.draw(st.integers(1, 4), label="threads")

    (alone,) = attend(library, [(position, 1)], heads, kind, window=window, num_threads=1)
    chunks = [*others[:place], (position - before, before + 1 + after), *others[place:]]
    numbers = [*range(1, place + 1), 0, *range(place + 1, len(others) + 1)]
    rows = attend(
        library, chunks, heads, kind, window=window, block_size=block_size, num_threads=num_threads, numbers=numbers
    )
    row = sum(new for _, new in others[:place]) + before
    assert torch.equal(rows[row], alone)


@cache
def long_sequence(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one key head of 64 and its two query heads."""
    return tuple(noise(length, heads, 64, dtype=torch.bfloat16, seed=heads) for heads in (2, 1, 3))  # type: ignore


@pytest.mark.parametrize("position", [4095, 4096, 5000, 8191, 8192, 99_999])
def test_long_contexts_are_put_together_in_one_order_however_they_are_shared(
    position: int, library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
):
    """Parts double in length at 4096, 8192, ...; up to four threads take some each, in chunks of any length."""
    monkeypatch.setitem(globals(), "sequence", lambda *_: (*long_sequence(position + 3)[:2], _values(position + 3)))
    heads = Heads(2, 1, 64)
    for window in (0, 4500):
        (alone,) = attend(library, [(position, 1)], heads, "bfloat16", window=window, num_threads=1)
        for chunk, num_threads in (((position, 1), 2), ((position, 1), 4), ((position - 7, 9), 3)):
            rows = attend(library, [chunk], heads, "bfloat16", window=window, num_threads=num_threads)
            assert torch.equal(rows[position - chunk[0]], alone)
        queries, keys, values = (x.double() for x in sequence(0, (2, 1, 64), "bfloat16"))
        first = max(0, position - window + 1) if window else 0
        scores = queries[position] @ keys[first : position + 1, 0].T / 8
        wanted = scores.softmax(-1) @ values[first : position + 1, 0]
        assert (alone - wanted).abs().max() < CACHES["bfloat16"][2]


def _values(length: int) -> Tensor:
    return long_sequence(length)[2][:, :1].contiguous()


# --- Scratch -------------------------------------------------------------------------------------------------------


def test_scratch_is_as_large_as_the_kernels_count(tmp_path: Path):
    shapes = [(9, 3, 64, 2), (14, 2, 64, 1), (71, 1, 80, 3), (32, 8, 128, 16), (2, 1, 5, 4), (200, 200, 24, 2)]
    calls = "".join(f'printf("%ld\\n", (long)scratch_floats(Heads({n}, {g}, {h}), {t}));' for n, g, h, t in shapes)
    source = tmp_path / "sizes.cpp"
    source.write_text(
        f'#include <cstdio>\n#include "attention.h"\nint main() {{ using namespace quire::attending; {calls} }}\n'
    )
    try:
        compiler = find_compiler()
    except CannotCompile:
        pytest.skip("there is no compiler")
    subprocess.run([compiler, "-std=c++17", f"-I{SOURCES}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    printed = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == [scratch_floats(*shape) for shape in shapes]


def test_scratch_does_not_grow_with_contexts_and_stays_small():
    assert scratch_floats(9, 3, 64, 2) * 4 < 2 << 20
    assert scratch_floats(32, 8, 128, 16) * 4 < 32 << 20


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_nothing_is_written_behind_the_scratch(num_threads: int, library: NativeLibrary):
    """Several long contexts: every border between two threads lies in one."""
    for kind in CACHES:
        for heads in (HEADS["64"], HEADS["80"], HEADS["16, 71 each"]):
            layer = make_layer([(1500, 2), (1699, 1), (1400, 1)], heads, kind, num_threads=num_threads)
            layer.run(library, num_threads)
            assert layer.scratch[-64:].isnan().all()
