"""The kernels that are compiled without a GPU, and their configurations: calls of their wrappers with meta tensors.

A wrapper that is called with meta tensors chooses types, constants, warps and stages as in a step, and can read no
value of the device. `TABLE` is checked by `make test`, at most 60 kernels; `make kernels` also checks `sweep()` of
compile_sweep.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from app.kernels.triton.layers import gate, matmul, matvec, norm, rotate, softcap
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


def normalize_columns(width: int, dtype: torch.dtype, arch: int) -> None:
    """Norm of some columns in place, by weights of float32."""
    x = tensor(TOKENS, 3 * width, dtype=dtype)[:, :width]
    norm.rms_norm(x, tensor(width, dtype=FP32), 1e-6, out=x)


def add(width: int, dtype: torch.dtype, arch: int) -> None:
    """Residual sum."""
    x = tensor(TOKENS, width, dtype=dtype)
    norm.add(x, x, out=x)


def rotate_heads(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, block_size: int,
    normed: bool, arch: int, *, scaled: bool = False,
) -> None:  # fmt: skip
    """Norm of heads, rotation, cache write."""
    cache = tensor(BLOCKS, block_size, kv_heads, head_dim, dtype=cache_dtype)
    rotate.qk_norm_rope_kv_write(
        tensor(TOKENS, (heads + 2 * kv_heads) * head_dim, dtype=dtype),
        tensor(heads + kv_heads, head_dim, dtype=dtype) if normed else None, 1e-6,
        tensor(4096, head_dim, dtype=FP32), cache, cache, state()[:, row_layout.TABLE :], ints(TOKENS), ints(TOKENS),
        block_size, tensor(4096, dtype=FP32) if scaled else None, out=tensor(TOKENS, heads, head_dim, dtype=dtype),
    )  # fmt: skip


def activate(activation: gate.Activation, width: int, dtype: torch.dtype, arch: int) -> None:
    """The activated gate times up."""
    gate.gate_mul(tensor(TOKENS, 2 * width, dtype=dtype), activation, out=tensor(TOKENS, width, dtype=dtype))


def cap(width: int, arch: int) -> None:
    """Logits below a cap."""
    x = tensor(TOKENS, width, dtype=FP32)
    softcap.softcap(x, 30.0, out=x)


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
    """Products of few rows followed by a residual, after a norm, with both norm and activation, or as logits.

    With GELU the norm's weight is of float32, as in Gemma.
    """
    x, weight = tensor(num_rows, depth, dtype=dtype), tensor(width, depth, dtype=dtype)
    norm_weight = tensor(depth, dtype=FP32 if kind == "gelu" else BF16)
    if kind == "residual":
        matvec.linear_add(x, weight, None, residual_TD=tensor(num_rows, width, dtype=dtype))
    elif kind in ("norm", "logits"):
        out = tensor(num_rows, width, dtype=FP32 if kind == "logits" else dtype)
        matvec.norm_linear(x, norm_weight, 1e-6, weight, None, out=out)
    else:
        activation: gate.Activation = "gelu" if kind == "gelu" else "silu"
        matvec.norm_gate_up(x, norm_weight, 1e-6, weight, activation, out=tensor(num_rows, width // 2, dtype=dtype))


def attend(
    kind: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype,
    block_size: int, window: int | None, tiles: torch.dtype, softcap: float | None, arch: int,
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
            q, cache, cache, *where, ints(64), ints(99, TILE_WIDTH), 0.1, window, softcap, config=config,
            num_programs=32, split_tokens=split_tokens, out=q,
        )  # fmt: skip
        return
    if "pieces" in kind:
        partials, counters = piece_scratch_sizes(99, kv_heads, head_dim, config.block_m)
        piece_attention(
            q, cache, cache, *where, ints(64), ints(99, PIECE_WIDTH), 0.1, window, softcap, num_programs=32,
            config=config, partials=tensor(partials, dtype=FP32), counters=ints(counters), split_tokens=split_tokens,
            out=q,
        )  # fmt: skip
        return
    grids = AttentionGrids(heads // kv_heads, kv_heads, PROCESSORS, config, config, config, split_tokens)
    num_splits = 1 if "whole" in kind else grids.decode_splits(TOKENS // 2, 16 * WHOLE_TOKENS)
    partials, counters = scratch_sizes(TOKENS, heads, kv_heads, head_dim, num_splits)
    decode_attention(
        q, cache, cache, *where, 0.1, window, softcap, partials=tensor(partials, dtype=FP32), counters=ints(counters),
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
ADD, GATE, CAP = ("norm._add_kernel",), ("gate._gate_mul_kernel",), ("softcap._softcap_kernel",)
ROTATE, COPY = ("rotate._rotate_kernel",), ("blocks._copy_kernel",)
MATMUL, MATVEC = ("matmul._matmul_kernel",), ("matvec._matvec_kernel",)
DECODE, PREFILL = ("decode_attention._decode_kernel",), ("prefill_attention._prefill_kernel",)
PIECES = ("piece_attention._piece_kernel",)
TWO_LAUNCHES = (*DECODE, "decode_attention._merge_kernel")
SAMPLE, PENALTIES = ("sample._sample_blocks_kernel", "sample._sample_rows_kernel"), ("penalties._penalties_kernel",)
LOGPROBS = ("logprobs._logprobs_blocks_kernel", "logprobs._logprobs_rows_kernel")
BOTH = (TENSOR_CORES, ASYNC_COPIES)
STREAMED = (ASYNC_COPIES, PREFETCHES)


def attention(
    kind: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = BF16,
    cache_dtype: torch.dtype | None = None, block_size: int = 16, window: int | None = None,
    tiles: torch.dtype | None = None, softcap: float | None = None,
) -> Configuration:  # fmt: skip
    """Attention of a step of `kind` (see `attend`)."""
    cache_dtype = cache_dtype or dtype
    name = f"{kind}: {heads}/{kv_heads} heads of {head_dim}, {short(dtype)}, cache {short(cache_dtype)}"
    if tiles is not None:
        name += f", tiles for {short(tiles)}"
    if softcap is not None:
        name += f", cap {softcap}"
    tiles = tiles or cache_dtype
    kernels = {"prefill": PREFILL, "pieces": PIECES, "launches": TWO_LAUNCHES}.get(kind.split()[-1], DECODE)
    # Tensor cores multiply no float32, and their warp groups have at least 64 rows; a merge is not critical.
    needs = BOTH if "prefill" in kind and dtype != FP32 else () if kind == "two launches" else (ASYNC_COPIES,)
    call = partial(attend, kind, heads, kv_heads, head_dim, dtype, cache_dtype, block_size, window, tiles, softcap)
    architectures = WITH_FP8 if FP8 in (cache_dtype, tiles) else (90, 80)
    return Configuration(f"{name}, blocks of {block_size}, window {window}", kernels, call, needs, architectures)


def short(dtype: torch.dtype) -> str:
    """A type's name."""
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
    Configuration("norm of 4096 columns", NORM, partial(normalize_columns, 4096, BF16)),
    Configuration("sum of 4096", ADD, partial(add, 4096, BF16)),
    Configuration("rotate, scaled queries", ROTATE,
                  partial(rotate_heads, 32, 8, 128, BF16, BF16, 16, False, scaled=True)),
    Configuration("silu_mul of 14336", GATE, partial(activate, "silu", 14336, BF16)),
    Configuration("gelu_mul of 9216", GATE, partial(activate, "gelu", 9216, BF16)),
    Configuration("softcap of 256000", CAP, partial(cap, 256000)),
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
    Configuration("8 rows, gelu", MATVEC, partial(multiply_few, "gelu", 8, 18432, 2304, BF16), STREAMED),
    *(attention(kind, 8, 4, 256, softcap=50.0) for kind in ("decode", "pieces", "prefill")),
    attention("decode", 32, 8, 128),
    attention("decode", 32, 8, 64),
    attention("decode", 16, 8, 128),
    attention("decode", 32, 8, 128, cache_dtype=FP8),
    attention("whole decode", 16, 8, 128),
    attention("pieces", 32, 8, 128),
    attention("pieces", 32, 8, 128, cache_dtype=FP8),
    attention("deterministic pieces", 32, 8, 128),
    attention("deterministic whole decode", 32, 8, 128),
    attention("two launches", 32, 8, 128),
    attention("deterministic decode", 32, 8, 128),
    attention("prefill", 32, 8, 128),
    attention("prefill", 32, 8, 64),
    attention("prefill", 16, 8, 128),
    attention("prefill", 32, 8, 128, cache_dtype=FP8),
    attention("deterministic prefill", 32, 8, 128),
    # An FP8 cache is calibrated over one of the model's type, by the kernels of the one to come.
    *(attention(kind, 32, 8, 128, block_size=CALIBRATION_BLOCK, tiles=FP8) for kind in ("pieces", "prefill")),
    Configuration("scatter", ("rows._scatter_kernel",), scatter_changes),
    Configuration("gather", ("rows._gather_kernel",), gather_step),
    Configuration("fill", ("rows._fill_kernel",), fill_step),
    Configuration("advance", ("rows._advance_kernel",), advance_rows),
    Configuration("penalties", PENALTIES, partial(penalize, 151936)),
    Configuration("sample", SAMPLE, partial(sample_tokens, 151936)),
    Configuration("logprobs", LOGPROBS, partial(compute_logprobs, 151936)),
]  # fmt: skip
