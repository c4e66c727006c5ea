"""The kernels that are compiled without a GPU, and their configurations: calls of their wrappers with meta tensors.

A wrapper that is called with meta tensors chooses types, constants, warps and stages as in a step, and can read no
value of the device. `TABLE` is checked by `make test`, at most 60 kernels; `make kernels` also checks `sweep()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from app.config.devices import MIN_DEPENDENT_CAPABILITY
from app.contract.sampling_params import MAX_LOGPROBS
from app.engine.execute.gpu.kv_calibration import BLOCK_SIZE as CALIBRATION_BLOCK
from app.kernels.triton import blocks, row_layout, rows
from app.kernels.triton.attention.attention_configs import DETERMINISTIC_SPLIT_TOKENS, Kind, attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import WHOLE_TOKENS, AttentionGrids
from app.kernels.triton.attention.piece_attention import piece_attention, piece_scratch_sizes
from app.kernels.triton.attention.prefill_attention import prefill_attention
from app.kernels.triton.attention.work import PIECE_WIDTH, TILE_WIDTH
from app.kernels.triton.layers import matmul, matvec, norm, rotate, silu_mul
from app.kernels.triton.sampling import logprobs, penalties, sample

# Bytes of shared memory that a program can have, by compute capability.
SHARED_LIMITS = {90: 227 * 1024, 89: 99 * 1024, 80: 163 * 1024}
# Architectures with 8-bit floating-point numbers.
WITH_FP8 = (90, 89)
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
# Token rows, state rows and blocks of the calls.
TOKENS, STATE_ROWS, BLOCKS = 64, 257, 4096
PROCESSORS = 132
TENSOR_CORES, ASYNC_COPIES, PREFETCHES = "HGMMA", "LDGSTS", "CCTL.E.PF2"


@dataclass(frozen=True)
class Configuration:
    """A wrapper's call for an architecture, the kernels that it launches, and the instructions that they must have.

    `needs` may have TENSOR_CORES (instructions of warp groups; on sm_80 the older ones), ASYNC_COPIES to shared
    memory, and PREFETCHES to the L2 cache (with dependent launches). `architectures` are those with the types: sm_89
    replaces sm_80 for 8-bit numbers.
    """

    name: str
    kernels: tuple[str, ...]
    call: Callable[[int], None]
    needs: tuple[str, ...] = ()
    architectures: tuple[int, ...] = (90, 80)


def failures(report: dict, configuration: Configuration) -> list[str]:
    """The failed checks of a compiled kernel, given the report of compile_kernels.py."""
    arch, found = report["arch"], []
    if report["spill_loads"] or report["spill_stores"]:
        found.append(f"spills: {report['spill_loads']} loads, {report['spill_stores']} stores")
    if report["shared"] > SHARED_LIMITS[arch]:
        found.append(f"takes {report['shared']} bytes of shared memory, of {SHARED_LIMITS[arch]}")
    has_dependent_launches = divmod(arch, 10) >= MIN_DEPENDENT_CAPABILITY
    if report["before_wait"] != ([] if has_dependent_launches else None):
        found.append(f"before it waits for the kernel before: {report['before_wait'] or 'it never waits'}")
    for instruction in configuration.needs:
        wanted = "HMMA" if instruction == TENSOR_CORES and arch < 90 else instruction
        if not report[wanted.lower()] and (has_dependent_launches or instruction != PREFETCHES):
            found.append(f"has no {wanted}")
    return found


def tensor(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor that takes no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> Tensor:
    """An int32 tensor that takes no memory."""
    return tensor(*shape, dtype=torch.int32)


def state() -> Tensor:
    """The state rows."""
    return ints(STATE_ROWS, row_layout.row_width(8192))


def normalize(width: int, dtype: torch.dtype, arch: int) -> None:
    """Residual sum and norm."""
    x = tensor(TOKENS, width, dtype=dtype)
    norm.add_rms_norm(x, x, tensor(width, dtype=dtype), 1e-5, out=x)


def rotate_heads(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, block_size: int,
    normed: bool, arch: int,
) -> None:  # fmt: skip
    """Norm of heads, rotation, cache write."""
    cache = tensor(BLOCKS, block_size, kv_heads, head_dim, dtype=cache_dtype)
    rotate.qk_norm_rope_kv_write(
        tensor(TOKENS, (heads + 2 * kv_heads) * head_dim, dtype=dtype),
        tensor(heads + kv_heads, head_dim, dtype=dtype) if normed else None, 1e-6,
        tensor(4096, head_dim, dtype=FP32), cache, cache, state()[:, row_layout.TABLE :], ints(TOKENS), ints(TOKENS),
        block_size, out=tensor(TOKENS, heads, head_dim, dtype=dtype),
    )  # fmt: skip


def activate(width: int, dtype: torch.dtype, arch: int) -> None:
    """SiLU times up."""
    silu_mul.silu_mul(tensor(TOKENS, 2 * width, dtype=dtype), out=tensor(TOKENS, width, dtype=dtype))


def copy(dtype: torch.dtype, block_size: int, arch: int) -> None:
    """Copies from the layout of host memory."""
    source, shape = tensor(500, 32, 2, block_size, 8, 128, dtype=dtype).permute(1, 2, 0, 3, 4, 5), (block_size, 8, 128)
    blocks.swap_blocks(source, tensor(4, 2, dtype=torch.int64), out=tensor(32, 2, BLOCKS, *shape, dtype=dtype))


def multiply(num_rows: int, width: int, depth: int, dtype: torch.dtype, out_dtype: torch.dtype, arch: int) -> None:
    """The deterministic product."""
    x, weight = tensor(num_rows, depth, dtype=dtype), tensor(width, depth, dtype=dtype)
    workspace = matmul.make_workspace(torch.device("meta"))
    matmul.matmul(x, weight, None, out=tensor(num_rows, width, dtype=out_dtype), workspace=workspace)


def multiply_few(kind: str, num_rows: int, width: int, depth: int, dtype: torch.dtype, arch: int) -> None:
    """Products of few rows followed by a residual, after a norm, with both norm and activation, or as logits."""
    x, weight, norm_weight = tensor(num_rows, depth, dtype=dtype), tensor(width, depth, dtype=dtype), tensor(depth)
    if kind == "residual":
        matvec.linear_add(x, weight, None, residual_TD=tensor(num_rows, width, dtype=dtype))
    elif kind in ("norm", "logits"):
        out = tensor(num_rows, width, dtype=FP32 if kind == "logits" else dtype)
        matvec.norm_linear(x, norm_weight, 1e-6, weight, None, out=out)
    else:
        matvec.norm_gate_up(x, norm_weight, 1e-6, weight, out=tensor(num_rows, width // 2, dtype=dtype))


def attend(
    kind: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype,
    block_size: int, window: int | None, tiles: torch.dtype, arch: int,
) -> None:  # fmt: skip
    """Attention of a step of `kind`: decode, pieces, prefill, and deterministic forms of them.

    "whole" is decode of many short contexts, "two launches" decode with the merge in a kernel of its own. `tiles` is
    the type of the cache that the config is for.
    """
    mode: Kind = "deterministic" if "deterministic" in kind else "decode"
    if kind in ("pieces", "prefill"):
        mode = kind
    config = attention_config(mode, head_dim, dtype, tiles, divmod(arch, 10))
    q, cache = (
        tensor(TOKENS, heads, head_dim, dtype=dtype),
        tensor(BLOCKS, block_size, kv_heads, head_dim, dtype=cache_dtype),
    )
    where = (state()[:, row_layout.TABLE :], ints(TOKENS), ints(TOKENS))
    split_tokens = DETERMINISTIC_SPLIT_TOKENS if mode == "deterministic" else None
    if "prefill" in kind:
        prefill_attention(
            q, cache, cache, *where, ints(64), ints(99, TILE_WIDTH), 0.1, window, config=config, num_programs=32,
            split_tokens=split_tokens, out=q,
        )  # fmt: skip
        return
    if "pieces" in kind:
        partials, counters = piece_scratch_sizes(99, kv_heads, head_dim, config.block_m)
        piece_attention(
            q, cache, cache, *where, ints(64), ints(99, PIECE_WIDTH), 0.1, window, num_programs=32, config=config,
            partials=tensor(partials, dtype=FP32), counters=ints(counters), split_tokens=split_tokens, out=q,
        )  # fmt: skip
        return
    grids = AttentionGrids(heads // kv_heads, kv_heads, PROCESSORS, config, config, config, split_tokens)
    num_splits = 1 if "whole" in kind else grids.decode_splits(TOKENS // 2, 16 * WHOLE_TOKENS)
    partials, counters = scratch_sizes(TOKENS, heads, kv_heads, head_dim, num_splits)
    decode_attention(
        q, cache, cache, *where, 0.1, window, partials=tensor(partials, dtype=FP32), counters=ints(counters),
        num_splits=num_splits, config=config, min_tokens=grids.least_split(TOKENS, num_splits),
        split_tokens=split_tokens, one_launch=kind != "two launches", out=q,
    )  # fmt: skip


def scatter_changes(arch: int) -> None:
    """Changes of state rows."""
    rows.scatter(ints(4096, 2), ints(1), out=state())


def gather_step(arch: int) -> None:
    """The start of a decode step."""
    rows.gather_decodes(state(), ints(TOKENS), ids_T=ints(TOKENS), positions_T=ints(TOKENS), state_rows_T=ints(TOKENS))


def fill_step(arch: int) -> None:
    """The start of a mixed step."""
    rows.fill_unknown(state(), ids_T=ints(TOKENS), state_rows_T=ints(TOKENS))


def advance_rows(arch: int) -> None:
    """The end of a step."""
    seen = tensor(STATE_ROWS, 151936, dtype=torch.int16)
    each = [ints(TOKENS) for _ in range(4)]
    rows.advance(state(), seen, *each, ring_KR=ints(4, 256), counter=ints(1))


def penalize(vocab: int, arch: int) -> None:
    """Biases and penalties."""
    logits, seen = tensor(TOKENS, vocab, dtype=FP32), tensor(STATE_ROWS, vocab, dtype=torch.int16)
    masks = ints(TOKENS, vocab // 32 + 1)
    penalties.apply_penalties(logits, state(), seen, masks, *[ints(TOKENS)] * 4, out=logits)


def sample_tokens(vocab: int, arch: int) -> None:
    """Sampling."""
    logits, scratch = tensor(TOKENS, vocab, dtype=FP32), ints(TOKENS, sample.scratch_width(vocab))
    each = [ints(TOKENS) for _ in range(3)]
    sample.sample(logits, logits, state(), *each, scratch_RX=scratch, tokens_R=ints(TOKENS))


def compute_logprobs(vocab: int, arch: int) -> None:
    """Log-probabilities."""
    ring = (4, 256, 1 + MAX_LOGPROBS)
    logprobs.logprobs(
        tensor(TOKENS, vocab, dtype=FP32), ints(TOKENS), state(), ints(TOKENS),
        scratch_RX=ints(TOKENS, sample.scratch_width(vocab)), values_ring_KRN=tensor(*ring, dtype=FP32),
        ids_ring_KRN=ints(*ring), counter=ints(1),
    )  # fmt: skip


NORM, WIDE_NORM = ("norm._rms_norm_kernel",), ("norm._wide_rms_norm_kernel",)
ROTATE, SILU, COPY = ("rotate._rotate_kernel",), ("silu_mul._silu_mul_kernel",), ("blocks._copy_kernel",)
MATMUL, MATVEC = ("matmul._matmul_kernel",), ("matvec._matvec_kernel",)
DECODE, PREFILL = ("decode_attention._decode_kernel",), ("prefill_attention._prefill_kernel",)
PIECES = ("piece_attention._piece_kernel",)
TWO_LAUNCHES = (*DECODE, "decode_attention._merge_kernel")
SAMPLE, PENALTIES = ("sample._sample_blocks_kernel", "sample._sample_rows_kernel"), ("penalties._penalties_kernel",)
LOGPROBS = ("logprobs._logprobs_blocks_kernel", "logprobs._logprobs_rows_kernel")
BOTH = (TENSOR_CORES, ASYNC_COPIES)
STREAMED = (ASYNC_COPIES, PREFETCHES)
# (type, the cache's, normed heads).
ROTATIONS = [(BF16, BF16, True), (FP16, FP8, False), (FP32, FP32, True), (FP32, FP8, False)]


def _attention(
    kind: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None, block_size: int = 16, window: int | None = None,
    tiles: torch.dtype | None = None,
) -> Configuration:  # fmt: skip
    cache_dtype = cache_dtype or dtype
    name = f"{kind}: {heads}/{kv_heads} heads of {head_dim}, {_short(dtype)}, cache {_short(cache_dtype)}"
    if tiles is not None:
        name += f", tiles for {_short(tiles)}"
    tiles = tiles or cache_dtype
    kernels = {"prefill": PREFILL, "pieces": PIECES, "launches": TWO_LAUNCHES}.get(kind.split()[-1], DECODE)
    # Tensor cores multiply no float32, and their warp groups have at least 64 rows; a merge is not critical.
    needs = BOTH if "prefill" in kind and dtype != FP32 else () if kind == "two launches" else (ASYNC_COPIES,)
    call = partial(attend, kind, heads, kv_heads, head_dim, dtype, cache_dtype, block_size, window, tiles)
    architectures = WITH_FP8 if FP8 in (cache_dtype, tiles) else (90, 80)
    return Configuration(f"{name}, blocks of {block_size}, window {window}", kernels, call, needs, architectures)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


TABLE = [
    Configuration("norm of 4096", NORM, partial(normalize, 4096, BF16), (PREFETCHES,)),
    Configuration("norm of 16384", WIDE_NORM, partial(normalize, 16384, BF16), (PREFETCHES,)),
    Configuration("rotate, normed heads of 128", ROTATE, partial(rotate_heads, 32, 8, 128, BF16, BF16, 16, True),
                  (PREFETCHES,)),
    Configuration("rotate heads of 64", ROTATE, partial(rotate_heads, 32, 8, 64, BF16, BF16, 16, False)),
    Configuration(
        "rotate, to float8", ROTATE, partial(rotate_heads, 32, 8, 128, BF16, FP8, 16, False), architectures=WITH_FP8
    ),
    Configuration("silu_mul of 14336", SILU, partial(activate, 14336, BF16)),
    Configuration("copy blocks", COPY, partial(copy, BF16, 16)),
    Configuration("matmul, splits apart", MATMUL, partial(multiply, 1, 4096, 4096, BF16, BF16),
                  (*BOTH, PREFETCHES)),
    Configuration("matmul, splits in one program", MATMUL, partial(multiply, 2048, 4096, 4096, BF16, BF16),
                  (*BOTH, PREFETCHES)),
    Configuration("matmul to logits", MATMUL, partial(multiply, 64, 151936, 4096, BF16, FP32), BOTH),
    Configuration("matmul of float32", MATMUL, partial(multiply, 64, 1000, 4096, FP32, FP32), STREAMED),
    *(
        Configuration(f"{num_rows} rows, {kind}", MATVEC, partial(multiply_few, kind, num_rows, width, depth, BF16),
                      STREAMED)
        for num_rows in matvec.ROW_TILES
        for kind, width, depth in (("residual", 4096, 14336), ("norm", 6144, 4096), ("gate", 28672, 4096),
                                   ("logits", 151936, 4096))
    ),
    _attention("decode", 32, 8, 128),
    _attention("decode", 32, 8, 64),
    _attention("decode", 16, 8, 128),
    _attention("decode", 32, 8, 128, cache_dtype=FP8),
    _attention("whole decode", 16, 8, 128),
    _attention("pieces", 32, 8, 128),
    _attention("pieces", 32, 8, 128, cache_dtype=FP8),
    _attention("deterministic pieces", 32, 8, 128),
    _attention("deterministic whole decode", 32, 8, 128),
    _attention("two launches", 32, 8, 128),
    _attention("deterministic decode", 32, 8, 128),
    _attention("prefill", 32, 8, 128),
    _attention("prefill", 32, 8, 64),
    _attention("prefill", 16, 8, 128),
    _attention("prefill", 32, 8, 128, cache_dtype=FP8),
    _attention("deterministic prefill", 32, 8, 128),
    # An FP8 cache is calibrated over one of the model's type, by the kernels of the one to come.
    *(_attention(kind, 32, 8, 128, block_size=CALIBRATION_BLOCK, tiles=FP8) for kind in ("pieces", "prefill")),
    Configuration("scatter", ("rows._scatter_kernel",), scatter_changes),
    Configuration("gather", ("rows._gather_kernel",), gather_step),
    Configuration("fill", ("rows._fill_kernel",), fill_step),
    Configuration("advance", ("rows._advance_kernel",), advance_rows),
    Configuration("penalties", PENALTIES, partial(penalize, 151936)),
    Configuration("sample", SAMPLE, partial(sample_tokens, 151936)),
    Configuration("logprobs", LOGPROBS, partial(compute_logprobs, 151936)),
]  # fmt: skip


def sweep() -> Iterator[Configuration]:
    """Yield other configurations of models: widths, groups of heads, types, block sizes, windows, vocabularies."""
    yield from _sweep_attention()
    for dtype in (BF16, FP16, FP32):
        name = _short(dtype)
        for width in (64, 576, 896, 1024, 2048, 5120, 8192, 12288):
            kernels = NORM if width <= norm.MAX_BLOCK else WIDE_NORM
            yield Configuration(f"norm of {width} {name}", kernels, partial(normalize, width, dtype))
            yield Configuration(f"silu_mul of {3 * width} {name}", SILU, partial(activate, 3 * width, dtype))
        for num_rows, (width, depth) in product((1, 256, 4096), ((1024, 3072), (6144, 4096), (49152, 576))):
            needs = BOTH if dtype != FP32 else (ASYNC_COPIES,)
            call = partial(multiply, num_rows, width, depth, dtype, dtype)
            yield Configuration(f"matmul {num_rows} x {width} x {depth} {name}", MATMUL, call, needs)
        for num_rows, (width, depth), kind in product(
            matvec.ROW_TILES, ((1152, 576), (2048, 1024), (9728, 2560), (34816, 5120), (151936, 1024)),
            ("residual", "norm", "gate", "logits"),
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
        yield _attention(kind, 8 * group, 8, head_dim, block_size=32)
        yield _attention(kind, 8 * group, 8, head_dim, FP16, window=4096)
        if "deterministic" not in kind:
            yield _attention(kind, 8 * group, 8, head_dim, cache_dtype=FP8, block_size=64)
    for kind, (head_dim, group) in product(("pieces", "prefill"), shapes):
        if head_dim != 128:  # those are in the table
            yield _attention(kind, 8 * group, 8, head_dim, block_size=CALIBRATION_BLOCK, tiles=FP8)
    for head_dim, group in shapes:
        yield _attention("whole decode", 7 * group, 7, head_dim, block_size=8)
        yield _attention("deterministic whole decode", 7 * group, 7, head_dim, block_size=8)
        yield _attention("two launches", 7 * group, 7, head_dim, block_size=128)
        yield _attention("decode", 4 * group, 4, head_dim, FP32)
        yield _attention("pieces", 4 * group, 4, head_dim, FP32)
        yield _attention("prefill", 4 * group, 4, head_dim, FP32)
        for dtype, cache_dtype, normed in ROTATIONS:
            name = (
                f"rotate {group} x 8 heads of {head_dim} {_short(dtype)}, cache {_short(cache_dtype)}, normed {normed}"
            )
            call = partial(rotate_heads, 8 * group, 8, head_dim, dtype, cache_dtype, 32, normed)
            yield Configuration(name, ROTATE, call, architectures=WITH_FP8 if cache_dtype == FP8 else (90, 80))
