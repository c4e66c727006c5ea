"""Native attention compared with float64, and bitwise with itself in other steps.

Values are of size 1. Bounds on the error of their mean: rounding of sums for float32 and float16 caches; weights of 8
bits for bfloat16; queries and weights of 15 bits for int8 (the reference reads the same rounded keys and values).
"""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.kernels.cpu.attention_scratch import scratch_floats
from app.kernels.cpu.compiling import SOURCES, CannotCompile, find_compiler
from app.kernels.cpu.library import NativeLibrary
from tests.cases import grid
from tests.kernels.batches import Heads, noise
from tests.kernels.cpu import native_attention
from tests.kernels.cpu.native_attention import CACHES, HEADS, LONGEST, attend, exact, make_layer

WINDOWS = [0, 1, 7, 100, 700]
# (tokens before, new tokens) of each sequence.
STEPS = {
    "one token": [(0, 1)],
    "edges of runs, groups and tiles": [(n, 1) for n in (6, 7, 8, 15, 16, 17, 254, 255, 256, 257, 511, 512)],
    "a prompt": [(0, 300)],
    "chunks": [(77, 61), (250, 12), (500, 33)],
    "mixed": [(40, 1), (0, 20), (600, 1), (5, 11), (129, 1), (255, 3)],
}


@cache
def expected(
    number: int, start: int, new: int, heads: tuple[int, int, int], kind: str, window: int, softcap: float = 0
) -> Tensor:
    """Attention [new, N, H] of a sequence's rows, in float64."""
    queries, keys, values = (exact(x[: start + new]) for x in native_attention.sequence(number, heads, kind))
    repeats = heads[0] // heads[1]
    keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
    rows, tokens = torch.arange(start, start + new)[:, None], torch.arange(start + new)
    hidden = tokens > rows
    if window:
        hidden |= tokens <= rows - window
    scores = torch.einsum("rnh,tnh->nrt", queries[start:], keys) * heads[2] ** -0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    return torch.einsum("nrt,tnh->rnh", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


# Types that are multiplied as another one: `make test` has them with whole vectors and with parts of one.
SECOND_KINDS, SOME_HEADS = ("float16", "int8 of float32"), ("64", "24")


@pytest.mark.parametrize(
    ("name", "kind"), grid(lambda name, kind: kind not in SECOND_KINDS or name in SOME_HEADS, HEADS, CACHES)
)
def test_every_type_width_and_window_is_close_to_float64(name: str, kind: str, library: NativeLibrary):
    heads, bound = HEADS[name], CACHES[kind][2]
    key = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
    for turn, (step, chunks) in enumerate(STEPS.items(), list(HEADS).index(name)):
        window, block_size = WINDOWS[turn % 5], (8, 16, 32, 64, 128)[turn % 5]
        found = attend(library, chunks, heads, kind, window=window, block_size=block_size)
        wanted = torch.cat([expected(n, *chunk, key, kind, window) for n, chunk in enumerate(chunks)])
        assert (found - wanted).abs().max() < bound, f"{step}, window {window}, block size {block_size}"


@pytest.mark.parametrize("kind", CACHES)
def test_scores_are_capped(kind: str, library: NativeLibrary):
    """Scores of size 1, at most 5, by caps that change most of them, and by one that changes the largest a little."""
    for name, softcap, window in (("64, 7 each", 1.5, 0), ("128", 0.3, 100), ("256", 1.5, 7), ("80", 20.0, 0)):
        heads = HEADS[name]
        key = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
        for chunks in (STEPS["mixed"], STEPS["chunks"]):
            found = attend(library, chunks, heads, kind, window=window, softcap=softcap)
            wanted = [expected(n, *chunk, key, kind, window, softcap) for n, chunk in enumerate(chunks)]
            assert (found - torch.cat(wanted)).abs().max() < CACHES[kind][2], f"{name}, cap {softcap}"


@pytest.mark.parametrize("kind", CACHES)
def test_bfloat16_results_are_rounded_float32_results(kind: str, library: NativeLibrary):
    for heads in (HEADS["64"], HEADS["24"]):
        exact_out = attend(library, STEPS["mixed"], heads, kind)
        rounded = attend(library, STEPS["mixed"], heads, kind, out_dtype=torch.bfloat16)
        assert torch.equal(rounded, exact_out.bfloat16())


@pytest.mark.parametrize("kind", CACHES)
def test_tokens_that_a_row_does_not_attend_to_change_nothing(kind: str, library: NativeLibrary):
    """Also unused slots of its last block, which may have values of an earlier sequence."""
    for heads in (HEADS["64"], HEADS["80"]):
        for window in (0, 19):
            zeros, large = (
                attend(library, STEPS["mixed"], heads, kind, window=window, block_size=64, unseen=unseen)
                for unseen in (0.0, -6e4)
            )
            assert torch.equal(zeros, large)


def test_a_step_without_rows_does_nothing(library: NativeLibrary):
    for kind in CACHES:
        assert attend(library, [], HEADS["64"], kind, num_threads=3).numel() == 0


@pytest.mark.parametrize("kind", CACHES)
def test_scores_of_hundreds_do_not_overflow(kind: str, library: NativeLibrary):
    """The largest score is last, first, or in between; the weights of all others are zero."""
    heads = Heads(2, 1, 32)
    for at in (0, 255, 300, 599):
        layer = make_layer([(599, 1)], heads, kind)
        _, keys, _ = native_attention.sequence(0, (2, 1, 32), kind)
        table = ctypes.cast(layer.fields.paged_rows.block_tables, ctypes.POINTER(ctypes.c_int32))
        block = table[layer.fields.paged_rows.table_stride + at // 16]
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
def test_a_row_has_the_same_bits_in_every_batch_and_on_any_threads(
    kind: str, library: NativeLibrary, data: st.DataObject
):
    heads = data.draw(st.sampled_from([HEADS[name] for name in ("64", "64, 7 each", "16", "80", "256")]), label="heads")
    window = data.draw(st.sampled_from([0, 1, 100, 700]), label="window")
    edges = [15, 16, 255, 256, 511, 1023, LONGEST - 1]
    softcap = data.draw(st.sampled_from([0.0, 1.5]), label="cap of scores")
    position = data.draw(st.sampled_from(edges) | st.integers(0, LONGEST - 1), label="position")
    before = data.draw(st.integers(0, min(position, 70)), label="rows before it in its chunk")
    after = data.draw(st.integers(0, min(LONGEST - 1 - position, 40)), label="rows after it in its chunk")
    others = data.draw(
        st.lists(st.tuples(st.integers(0, LONGEST - 9), st.sampled_from([1, 1, 1, 9])), max_size=6), label="others"
    )
    index = data.draw(st.integers(0, len(others)), label="sequences before it")
    block_size = data.draw(st.sampled_from([8, 16, 32, 64, 128]), label="block size")
    num_threads = data.draw(st.integers(1, 4), label="threads")

    how = {"window": window, "softcap": softcap}
    (alone,) = attend(library, [(position, 1)], heads, kind, **how, num_threads=1)
    chunks = [*others[:index], (position - before, before + 1 + after), *others[index:]]
    numbers = [*range(1, index + 1), 0, *range(index + 1, len(others) + 1)]
    rows = attend(library, chunks, heads, kind, **how, block_size=block_size, num_threads=num_threads, numbers=numbers)
    row = sum(new for _, new in others[:index]) + before
    assert torch.equal(rows[row], alone)


@cache
def long_sequence(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one key head of 64 and its two query heads."""
    return tuple(noise(length, heads, 64, dtype=torch.bfloat16, seed=heads) for heads in (2, 1, 3))  # type: ignore


@pytest.mark.parametrize("position", [4095, 4096, 5000, 8191, 8192, 99_999])
def test_parts_of_long_contexts_are_merged_in_one_order(
    position: int, library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
):
    """Parts double in length at 4096, 8192, ...; up to four threads share them, in chunks of any length."""
    monkeypatch.setattr(
        native_attention, "sequence", lambda *_: (*long_sequence(position + 3)[:2], _values(position + 3))
    )
    heads = Heads(2, 1, 64)
    for window in (0, 4500):
        (alone,) = attend(library, [(position, 1)], heads, "bfloat16", window=window, num_threads=1)
        for chunk, num_threads in (((position, 1), 2), ((position, 1), 4), ((position - 7, 9), 3)):
            rows = attend(library, [chunk], heads, "bfloat16", window=window, num_threads=num_threads)
            assert torch.equal(rows[position - chunk[0]], alone)
        queries, keys, values = (x.double() for x in native_attention.sequence(0, (2, 1, 64), "bfloat16"))
        first = max(0, position - window + 1) if window else 0
        scores = queries[position] @ keys[first : position + 1, 0].T / 8
        wanted = scores.softmax(-1) @ values[first : position + 1, 0]
        assert (alone - wanted).abs().max() < CACHES["bfloat16"][2]


def _values(length: int) -> Tensor:
    return long_sequence(length)[2][:, :1].contiguous()


# --- Scratch -------------------------------------------------------------------------------------------------------


def test_the_size_of_the_scratch_equals_that_of_the_kernels(tmp_path: Path):
    shapes = [(9, 3, 64, 2), (14, 2, 64, 1), (71, 1, 80, 3), (32, 8, 128, 16), (2, 1, 5, 4), (200, 200, 24, 2)]
    calls = "".join(f'printf("%ld\\n", (long)scratch_floats(Heads({n}, {g}, {h}), {t}));' for n, g, h, t in shapes)
    source = tmp_path / "sizes.cpp"
    source.write_text(
        f'#include <cstdio>\n#include "attention.h"\nint main() {{ using namespace quire::attending; {calls} }}\n'
    )
    try:
        compiler = find_compiler()
    except CannotCompile:
        pytest.skip("no compiler found, or this machine lacks the instructions")
    subprocess.run([compiler, "-std=c++17", f"-I{SOURCES}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    printed = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == [scratch_floats(*shape) for shape in shapes]


def test_the_scratch_is_small_for_any_context():
    assert scratch_floats(9, 3, 64, 2) * 4 < 2 << 20
    assert scratch_floats(32, 8, 128, 16) * 4 < 32 << 20


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_nothing_is_written_beyond_the_scratch(num_threads: int, library: NativeLibrary):
    """With several long contexts every boundary between two threads is inside a context."""
    for kind in CACHES:
        for heads in (HEADS["64"], HEADS["80"], HEADS["16, 71 each"]):
            layer = make_layer([(1500, 2), (1699, 1), (1400, 1)], heads, kind, num_threads=num_threads)
            layer.run(library, num_threads)
            assert layer.scratch[-64:].isnan().all()
