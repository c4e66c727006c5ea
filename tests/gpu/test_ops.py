"""Every operation on the GPU compared with the float32 reference: new random inputs in every run, outputs of NaN."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch

from app.kernels.ops import LinearWeight, PagedBatch
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.triton_ops import CublasProducts, InvariantProducts, TritonOps
from tests.gpu.driving import CUDA, noise, unwritten
from tests.kernels.batches import Heads, Step
from tests.kernels.reference import ReferenceOps
from tests.kernels.triton.batches import device_batch

HEADS = {
    "d128": Heads(32, 8, 128),
    "d64": Heads(32, 8, 64),
    "qwen-0.6b": Heads(16, 8, 128),
    "odd": Heads(6, 2, 80),
    "gemma": Heads(8, 4, 256),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Units in the last place of sums in float32 that are rounded once: bfloat16 has 8 bits, float16 11.
TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 2e-5}


def ops_for(
    heads: Heads, dtype: torch.dtype, *, cache: torch.dtype | None = None, deterministic: bool = False
) -> TritonOps:
    attention = PagedAttention(
        CUDA,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        dtype=dtype,
        cache_dtype=cache or dtype,
        max_rows=256,
        max_tokens=8192,
        max_context=16384,
        num_processors=torch.cuda.get_device_properties(CUDA).multi_processor_count,
        capability=torch.cuda.get_device_capability(CUDA),
        is_deterministic=deterministic,
    )
    return TritonOps(InvariantProducts(CUDA) if deterministic else CublasProducts(), attention)


def check(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    assert not got.isnan().any(), f"{what}: NaN, or unwritten values"
    error = (got.float().cpu() - wanted.float().cpu()).abs().max() / wanted.float().abs().max().clamp(min=1e-6)
    assert error < TOLERANCE[dtype], f"{what}: relative error {error:.2e}"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [1000, 1024, 4096, 9000])
def test_norms(dtype, width):
    ops, reference = ops_for(HEADS["d128"], dtype), ReferenceOps()
    x, residual, weight = noise(37, width, dtype=dtype), noise(37, width, dtype=dtype), noise(width, dtype=dtype)
    out = unwritten(37, width, dtype=dtype)
    ops.rms_norm(x, weight, 1e-5, out=out)
    wanted = unwritten(37, width, dtype=torch.float32)
    reference.rms_norm(x.float(), weight.float(), 1e-5, out=wanted)
    check(out, wanted, dtype, "rms_norm")
    summed, out = residual.clone(), unwritten(37, width, dtype=dtype)
    ops.add_rms_norm(x, summed, weight, 1e-5, out=out)
    check(summed, residual.float() + x.float(), dtype, "residual")
    reference.rms_norm(summed.float(), weight.float(), 1e-5, out=wanted)
    check(out, wanted, dtype, "add_rms_norm")
    summed, out = residual.clone(), x.clone()
    ops.add_rms_norm(out, summed, None, 1e-5, out=out)
    check(summed, residual.float() + x.float(), dtype, "residual without a norm")
    assert torch.equal(out, summed)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [128, 4096, 9000])
def test_norms_of_columns_in_place_with_weights_of_float32(dtype, width):
    ops, reference = ops_for(HEADS["d128"], dtype), ReferenceOps()
    rows, weight = noise(37, 3 * width, dtype=dtype), noise(2 * width, dtype=torch.float32)
    given = rows.clone()
    for columns in (slice(0, width), slice(width, 2 * width)):
        wanted = unwritten(37, width, dtype=torch.float32)
        reference.rms_norm(given[:, columns].float(), weight[columns], 1e-5, out=wanted)
        ops.rms_norm(rows[:, columns], weight[columns], 1e-5, out=rows[:, columns])
        check(rows[:, columns], wanted, dtype, "rms_norm in place")
    assert torch.equal(rows[:, 2 * width :], given[:, 2 * width :])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [96, 3072, 14336])
def test_activations(dtype, width):
    gate_up, ops = noise(29, 2 * width, dtype=dtype), ops_for(HEADS["d128"], dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    out = unwritten(29, width, dtype=dtype)
    ops.silu_mul(gate_up, out=out)
    check(out, torch.nn.functional.silu(gate) * up, dtype, "silu_mul")
    out = unwritten(29, width, dtype=dtype)
    ops.gelu_mul(gate_up, out=out)
    check(out, torch.nn.functional.gelu(gate, approximate="tanh") * up, dtype, "gelu_mul")


def test_softcap():
    logits = noise(33, 50001, dtype=torch.float32, scale=40)
    wanted = 30 * torch.tanh(logits.double() / 30)
    ops_for(HEADS["d128"], torch.bfloat16).softcap(logits, 30.0, out=logits)
    check(logits, wanted, torch.float32, "softcap")


@pytest.mark.parametrize("deterministic", [False, True], ids=["cublas", "invariant"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_products(dtype, deterministic):
    ops = ops_for(HEADS["d128"], dtype, deterministic=deterministic)
    for rows, width, depth in itertools.product((1, 2, 8, 100, 256, 700), (4096,), (1024, 304)):
        x, weight = noise(rows, depth, dtype=dtype), noise(width, depth, dtype=dtype, scale=depth**-0.5)
        bias = noise(width, dtype=dtype)
        product = x.double() @ weight.double().T
        for given, wanted in ((None, product), (bias, product + bias.double())):
            out = unwritten(rows, width, dtype=dtype)
            ops.linear(x, LinearWeight(weight, given), out=out)
            check(out, wanted, dtype, "linear")
        out = unwritten(rows, width, dtype=torch.float32)
        ops.logits(x, LinearWeight(weight), out=out)
        check(out, product, torch.float32, "logits")


def test_invariant_products_give_a_row_the_same_bits_in_any_batch():
    ops = ops_for(HEADS["d128"], torch.bfloat16, deterministic=True)
    for width, depth in ((4096, 4096), (1024, 2048), (6144, 1024), (151936, 1024)):
        x, weight = noise(700, depth), LinearWeight(noise(width, depth, scale=depth**-0.5))
        full = unwritten(700, width)
        ops.linear(x, weight, out=full)
        for rows in (1, 2, 7, 16, 64, 129, 256, 513):
            part = unwritten(rows, width)
            ops.linear(x[100 : 100 + rows], weight, out=part)
            assert torch.equal(part, full[100 : 100 + rows]), f"{rows} rows of {width} x {depth}"


def random_chunks(rng: random.Random, decodes: int, prompts: int, longest: int) -> list[tuple[int, int]]:
    alone = [(rng.choice((0, 1, 15, 16, rng.randrange(longest))), 1) for _ in range(decodes)]
    return alone + [(rng.choice((0, rng.randrange(longest))), rng.randrange(2, 90)) for _ in range(prompts)]


def run_attention(
    ops: TritonOps, batch: PagedBatch, step: Step, q: torch.Tensor, caches, window, softcap=None
) -> torch.Tensor:
    ops.begin_step(batch)
    out = unwritten(*q.shape, dtype=q.dtype)
    ops.paged_attention(q, *caches, q.shape[2] ** -0.5, window, softcap, out=out)
    return out


# Each combination compiles three kernels, which takes a second or two.
@pytest.mark.parametrize(
    ("name", "dtype", "deterministic", "window", "softcap"),
    [
        *((name, torch.bfloat16, False, None, None) for name in HEADS),
        *((name, torch.bfloat16, True, None, None) for name in HEADS),
        ("d128", torch.bfloat16, False, 100, None),
        ("odd", torch.bfloat16, True, 100, None),
        ("d128", torch.float16, False, None, None),
        ("d64", torch.float32, False, None, None),
        ("d128", torch.float32, True, 100, None),
        ("gemma", torch.bfloat16, False, 100, 1.0),
        ("gemma", torch.bfloat16, True, None, 1.0),
        ("d64", torch.float32, False, None, 1.0),
    ],
)
def test_attention(name, dtype, deterministic, window, softcap):
    heads = HEADS[name]
    ops, reference, rng = ops_for(heads, dtype, deterministic=deterministic), ReferenceOps(), random.Random()
    for decodes, prompts in ((1, 0), (17, 0), (0, 3), (12, 2)):
        chunks = random_chunks(rng, decodes, prompts, 1500)
        num_tokens = sum(new for _, new in chunks)
        work = ops._attention.mixed_work if prompts else None
        batch, step = device_batch(chunks, heads, num_rows=num_tokens + 5, work=work, block_size=16, dtype=dtype)
        if not prompts:
            batch = replace(batch, num_splits=ops._attention.grids.decode_splits(num_tokens + 5, 16384))
        caches = [cache.to(CUDA) for cache in step.caches()]
        q = noise(num_tokens + 5, heads.num_heads, heads.head_dim, dtype=dtype)
        out = run_attention(ops, batch, step, q, caches, window, softcap)
        wanted = torch.zeros(num_tokens + 5, heads.num_heads, heads.head_dim)
        reference.begin_step(step.batch)
        host = (q.float().cpu(), *(cache.float() for cache in step.caches()))
        reference.paged_attention(*host, heads.head_dim**-0.5, window, softcap, out=wanted)
        check(out[:num_tokens], wanted[:num_tokens], dtype, f"attention of {decodes} decodes, {prompts} prompts")
        if not prompts:
            assert not out[num_tokens:].any(), "padding must be zeros"
        out = out[:num_tokens]
        again = run_attention(ops, batch, step, q, caches, window, softcap)[:num_tokens]
        assert torch.equal(out, again), "a repetition differs"


def test_attention_over_an_fp8_cache():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    heads, fp8 = HEADS["d128"], torch.float8_e4m3fn
    ops, reference = ops_for(heads, torch.bfloat16, cache=fp8), ReferenceOps()
    chunks = random_chunks(random.Random(), 9, 2, 800)
    num_tokens = sum(new for _, new in chunks)
    batch, step = device_batch(chunks, heads, num_rows=num_tokens, work=ops._attention.mixed_work, dtype=torch.bfloat16)
    caches = [cache.to(CUDA).to(fp8) for cache in step.caches()]
    q = noise(num_tokens, heads.num_heads, heads.head_dim)
    out = run_attention(ops, batch, step, q, caches, None)
    wanted = torch.zeros(num_tokens, heads.num_heads, heads.head_dim)
    reference.begin_step(step.batch)
    reference.paged_attention(
        q.float().cpu(), *(cache.float().cpu() for cache in caches), heads.head_dim**-0.5, None, out=wanted
    )
    check(out, wanted, torch.bfloat16, "attention over fp8")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("heads", [HEADS["d128"], HEADS["odd"]], ids=["d128", "odd"])
@pytest.mark.parametrize(("has_norm", "is_scaled"), [(False, False), (True, False), (False, True)])
def test_rotation_and_cache_write(dtype, heads, has_norm, is_scaled):
    ops, reference = ops_for(heads, dtype), ReferenceOps()
    chunks = [(0, 5), (16, 1), (37, 40), (500, 1)]
    batch, step = device_batch(chunks, heads, num_rows=50, work=ops._attention.mixed_work, dtype=dtype)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    qkv = noise(50, width, dtype=dtype)
    norm = noise(heads.num_heads + heads.num_kv_heads, heads.head_dim, dtype=dtype) if has_norm else None
    angles = torch.rand(600, heads.head_dim // 2, device=CUDA) * 6
    rope = torch.cat([angles.cos(), angles.sin()], dim=-1)
    query_scale = 1 + torch.rand(600, device=CUDA) if is_scaled else None
    caches = [cache.to(CUDA) for cache in step.caches()]
    out = unwritten(50, heads.num_heads, heads.head_dim, dtype=dtype)
    ops.begin_step(batch)
    ops.qk_norm_rope_kv_write(qkv, norm, 1e-6, rope, *caches, query_scale, out=out)
    wanted, expected = torch.zeros(50, heads.num_heads, heads.head_dim), [cache.float() for cache in step.caches()]
    reference.begin_step(step.batch)
    host = [None if each is None else each.float().cpu() for each in (norm, query_scale)]
    reference.qk_norm_rope_kv_write(qkv.float().cpu(), host[0], 1e-6, rope.cpu(), *expected, host[1], out=wanted)
    check(out[:47], wanted[:47], dtype, "queries")
    assert not out[47:].any()
    for got, cache in zip(caches, expected, strict=True):
        check(got, cache, dtype, "cache")


def test_copies_and_swaps_of_blocks():
    ops = ops_for(HEADS["d128"], torch.bfloat16)
    device = noise(3, 2, 20, 16, 8, 128)
    host = torch.randn(12, 3, 2, 16, 8, 128).bfloat16().pin_memory().permute(1, 2, 0, 3, 4, 5)
    expected = device.clone()
    copies = torch.tensor([(1, 9), (1, 10), (4, 2)])
    for source, target in copies.tolist():
        expected[:, :, target] = expected[:, :, source]
    ops.copy_blocks(copies, out=device)
    assert torch.equal(device, expected)
    ops.swap_blocks(device, torch.tensor([(9, 3), (5, 0)]), out=host)
    torch.cuda.synchronize()
    assert torch.equal(host[:, :, 3], expected[:, :, 9].cpu()) and torch.equal(host[:, :, 0], expected[:, :, 5].cpu())
    ops.swap_blocks(host, torch.tensor([(7, 1)]), out=device)
    assert torch.equal(device[:, :, 1].cpu(), host[:, :, 7])
