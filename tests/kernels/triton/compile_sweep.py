"""Other configurations of the kernels that compile_table.py lists: those of models of many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from app.kernels.triton.layers import matvec, norm
from tests.kernels.triton.compile_table import (
    ADD,
    ASYNC_COPIES,
    BF16,
    BOTH,
    CALIBRATION_BLOCK,
    FP8,
    FP16,
    FP32,
    GATE,
    LOGPROBS,
    MATMUL,
    MATVEC,
    NORM,
    PENALTIES,
    ROTATE,
    SAMPLE,
    WIDE_NORM,
    WITH_FP8,
    Configuration,
    activate,
    add,
    attention,
    compute_logprobs,
    multiply,
    multiply_few,
    normalize,
    normalize_columns,
    penalize,
    rotate_heads,
    sample_tokens,
    short,
)

# (type, the cache's, normed heads).
ROTATIONS = [(BF16, BF16, True), (FP16, FP8, False), (FP32, FP32, True), (FP32, FP8, False)]


def sweep() -> Iterator[Configuration]:
    """Yield other configurations of models: widths, groups of heads, types, block sizes, windows, vocabularies."""
    yield from _sweep_attention()
    for dtype in (BF16, FP16, FP32):
        name = short(dtype)
        for width in (64, 576, 896, 1024, 2048, 5120, 8192, 12288):
            kernels = NORM if width <= norm.MAX_BLOCK else WIDE_NORM
            yield Configuration(f"norm of {width} {name}", kernels, partial(normalize, width, dtype))
            yield Configuration(f"norm of {width} columns {name}", kernels, partial(normalize_columns, width, dtype))
            yield Configuration(f"sum of {width} {name}", ADD, partial(add, width, dtype))
            yield Configuration(f"silu_mul of {3 * width} {name}", GATE, partial(activate, "silu", 3 * width, dtype))
            yield Configuration(f"gelu_mul of {3 * width} {name}", GATE, partial(activate, "gelu", 3 * width, dtype))
        for num_rows, (width, depth) in product((1, 256, 4096), ((1024, 3072), (6144, 4096), (49152, 576))):
            needs = BOTH if dtype != FP32 else (ASYNC_COPIES,)
            call = partial(multiply, num_rows, width, depth, dtype, dtype)
            yield Configuration(f"matmul {num_rows} x {width} x {depth} {name}", MATMUL, call, needs)
        for num_rows, (width, depth), kind in product(
            matvec.ROW_TILES, ((1152, 576), (2048, 1024), (9728, 2560), (34816, 5120), (151936, 1024)),
            ("residual", "norm", "gate", "gelu", "logits"),
        ):  # fmt: skip
            if matvec.serves(num_rows, dtype):
                call = partial(multiply_few, kind, num_rows, width, depth, dtype)
                yield Configuration(f"{num_rows} rows, {kind}, {width} x {depth} {name}", MATVEC, call, (ASYNC_COPIES,))
    for vocab in (1000, 32000, 49152, 128256, 262144):
        yield Configuration(f"sample of {vocab}", SAMPLE, partial(sample_tokens, vocab))
        yield Configuration(f"logprobs of {vocab}", LOGPROBS, partial(compute_logprobs, vocab))
        yield Configuration(f"penalties {vocab}", PENALTIES, partial(penalize, vocab))


def _sweep_attention() -> Iterator[Configuration]:
    shapes = list(product((64, 96, 128, 256), (1, 2, 4, 8)))
    kinds = ("decode", "pieces", "prefill")
    for kind, (head_dim, group) in product((*kinds, *(f"deterministic {kind}" for kind in kinds)), shapes):
        yield attention(kind, 8 * group, 8, head_dim, block_size=32)
        yield attention(kind, 8 * group, 8, head_dim, FP16, window=4096)
        if "deterministic" not in kind:
            yield attention(kind, 8 * group, 8, head_dim, cache_dtype=FP8, block_size=64)
    for kind, head_dim in product(kinds, (128, 256)):  # those of Gemma 2
        yield attention(kind, 16, 8, head_dim, window=4096, softcap=50.0)
        yield attention(kind, 16, 8, head_dim, cache_dtype=FP8, softcap=50.0)
        yield attention(f"deterministic {kind}", 16, 8, head_dim, window=4096, softcap=50.0)
    for kind, (head_dim, group) in product(("pieces", "prefill"), shapes):
        if head_dim != 128:  # those are in the table
            yield attention(kind, 8 * group, 8, head_dim, block_size=CALIBRATION_BLOCK, tiles=FP8)
    for head_dim, group in shapes:
        yield attention("whole decode", 7 * group, 7, head_dim, block_size=8)
        yield attention("deterministic whole decode", 7 * group, 7, head_dim, block_size=8)
        yield attention("two launches", 7 * group, 7, head_dim, block_size=128)
        yield attention("decode", 4 * group, 4, head_dim, FP32)
        yield attention("pieces", 4 * group, 4, head_dim, FP32)
        yield attention("prefill", 4 * group, 4, head_dim, FP32)
        for dtype, cache_dtype, normed in ROTATIONS:
            name = f"rotate {group} x 8 heads of {head_dim} {short(dtype)}, cache {short(cache_dtype)}, normed {normed}"
            call = partial(rotate_heads, 8 * group, 8, head_dim, dtype, cache_dtype, 32, normed)
            yield Configuration(name, ROTATE, call, architectures=WITH_FP8 if cache_dtype == FP8 else (90, 80))
