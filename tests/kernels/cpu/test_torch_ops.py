"""TorchOps compared with ReferenceOps, and isolation of sequences in a shared cache.

Tolerances: float32 differs only by the order of sums (1e-5 for values of size 1); bfloat16 and float16 by one rounding
of the result, and of an intermediate value if both round one (2 units in the last place: 2**-7 and 2**-10 relative).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import LinearWeight, Ops, PagedBatch
from tests.kernels.batches import Heads, Step, make_step, noise
from tests.kernels.reference import ReferenceOps

TOLERANCES = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-7},
    torch.float16: {"rtol": 2**-10, "atol": 2**-10},
}
DTYPES = list(TOLERANCES)
HEADS = [Heads(1, 1, 2), Heads(3, 3, 16), Heads(6, 2, 24), Heads(4, 1, 80), Heads(7, 7, 10)]
WINDOWS = [None, 1, 7, 200]
STEPS = {
    "one token": [(0, 1)],
    "block size - 1": [(0, 15)],
    "block size": [(0, 16)],
    "block size + 1": [(0, 17)],
    "first token of a block": [(16, 1)],
    "tile edge": [(127, 1), (128, 1), (120, 8), (120, 9)],
    "primes": [(0, 13), (31, 7), (101, 1), (211, 3)],
    "decodes of all lengths": [(n, 1) for n in (0, 1, 15, 16, 17, 63, 64, 130, 255, 256, 300)],
    "long prompt": [(0, 300)],
    "long chunk of a longer prompt": [(77, 161)],
    "mixed": [(40, 1), (0, 20), (200, 1), (5, 11), (129, 1)],
}


def both(run: Any) -> tuple[Tensor, Tensor]:
    """The result of an operation with TorchOps and with ReferenceOps."""
    return run(TorchOps()), run(ReferenceOps())


def attend(
    ops: Ops, step: Step, heads: Heads, dtype: torch.dtype, window: int | None, softcap: float | None = None
) -> Tensor:
    """The attention of a step; output rows are garbage before, which the padding must not keep."""
    q_TNH = noise(step.num_rows, heads.num_heads, heads.head_dim, dtype=dtype)
    out = torch.full_like(q_TNH, 7.0)
    ops.begin_step(step.batch)
    ops.paged_attention(q_TNH, *step.caches(), heads.head_dim**-0.5, window, softcap, out=out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("inner", "outputs"), [(40, 48), (576, 1536), (1024, 1024)])
def test_a_product_has_the_same_bits_of_few_rows_and_of_many(inner: int, outputs: int, has_bias: bool, dtype):
    x, bias = noise(64, inner, dtype=dtype), noise(outputs, dtype=dtype, seed=2) if has_bias else None
    weight = LinearWeight(noise(outputs, inner, dtype=dtype, seed=1), bias)
    whole = torch.empty(64, outputs, dtype=dtype)
    TorchOps().linear(x, weight, out=whole)
    for num_rows in range(8, 64, 8):
        part = torch.empty(num_rows, outputs, dtype=dtype)
        TorchOps().linear(x[64 - num_rows :], weight, out=part)
        assert torch.equal(part, whole[64 - num_rows :])


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"window {window}")
@pytest.mark.parametrize("chunks", STEPS.values(), ids=STEPS)
def test_paged_attention_equals_the_reference_for_every_shape(chunks: list[tuple[int, int]], window: int | None):
    for heads in HEADS:
        step = make_step(chunks, heads)
        ours, expected = both(lambda ops: attend(ops, step, heads, torch.float32, window))  # noqa: B023
        torch.testing.assert_close(ours, expected, **TOLERANCES[torch.float32])
        assert (ours[step.batch.num_tokens :] == 0).all()


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_paged_attention_equals_the_reference_for_every_type(dtype: torch.dtype, block_size: int):
    heads = Heads(6, 2, 24)
    for chunks in (STEPS["mixed"], STEPS["long chunk of a longer prompt"]):
        step = make_step(chunks, heads, block_size=block_size, dtype=dtype)
        ours, expected = both(lambda ops: attend(ops, step, heads, dtype, 50))  # noqa: B023
        torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_capped_scores_equal_those_of_the_reference(dtype: torch.dtype):
    heads = Heads(6, 2, 24)
    step = make_step(STEPS["mixed"], heads, dtype=dtype)
    ours, expected = both(lambda ops: attend(ops, step, heads, dtype, 50, 0.7))
    torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])
    assert not torch.allclose(ours, attend(TorchOps(), step, heads, dtype, 50), atol=0.05)


def test_paged_attention_of_very_different_scores_is_exact():
    """With scores of hundreds a softmax without subtracting the maximum would overflow; float32 resolves 3e-5."""
    heads = Heads(2, 1, 16)
    step = make_step([(150, 1), (0, 40)], heads)
    step.k_cache_BKGH.mul_(100)
    ours, expected = both(lambda ops: attend(ops, step, heads, torch.float32, None))
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "chunks", [[(140, 1), (20, 1), (9, 1)], [(0, 30), (50, 20), (140, 1)]], ids=["decode", "mixed"]
)
def test_invalid_values_of_one_sequence_do_not_reach_another(chunks: list[tuple[int, int]], value: float):
    """Query, keys and values of the first sequence are invalid, and written to the cache, as by a broken model."""
    heads = Heads(4, 2, 16)
    step = make_step(chunks, heads)
    first = chunks[0][1]
    clean, dirty = (write_and_attend(TorchOps(), step, heads, invalid) for invalid in (None, (first, value)))
    assert not dirty[:first].isfinite().all()
    assert torch.equal(clean[first:], dirty[first:])


def write_and_attend(ops: Ops, step: Step, heads: Heads, invalid: tuple[int, float] | None) -> Tensor:
    """Cache write and attention of a step; `invalid` is the number of first rows with invalid values, and the value."""
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    qkv_TX = noise(step.num_rows, width)
    if invalid is not None:
        qkv_TX[: invalid[0]] = invalid[1]
    q_TNH = torch.zeros(step.num_rows, heads.num_heads, heads.head_dim)
    out = torch.zeros_like(q_TNH)
    keys, values = step.caches()
    rope_PH = noise(400, heads.head_dim, seed=1)
    ops.begin_step(step.batch)
    ops.qk_norm_rope_kv_write(qkv_TX, None, 1e-6, rope_PH, keys, values, out=q_TNH)
    ops.paged_attention(q_TNH, keys, values, 0.25, None, out=out)
    return out


def test_invalid_values_in_freed_blocks_do_not_reach_the_next_sequence():
    heads = Heads(4, 2, 16)
    first, other = make_step([(0, 40)], heads), make_step([(0, 40)], heads)
    keys, values = first.caches()
    ops = TorchOps()
    rope_PH = noise(64, heads.head_dim, seed=1)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    outs = []
    for num_tokens, fill in ((40, float("inf")), (40, float("nan")), (3, None), (3, None)):
        if len(outs) == 3:
            keys, values = other.caches()  # the same blocks without invalid values
        batch = make_step([(0, num_tokens)], heads).batch
        batch = PagedBatch(num_tokens, batch.positions_T, batch.state_rows_T, first.batch.block_tables_SB, 16)
        qkv_TX = noise(len(batch.positions_T), width)
        if fill is not None:
            qkv_TX.fill_(fill)
        q_TNH = torch.zeros(len(qkv_TX), heads.num_heads, heads.head_dim)
        outs.append(torch.zeros_like(q_TNH))
        ops.begin_step(batch)
        ops.qk_norm_rope_kv_write(qkv_TX, None, 1e-6, rope_PH, keys, values, out=q_TNH)
        ops.paged_attention(q_TNH, keys, values, 0.25, None, out=outs[-1])
    assert outs[2].isfinite().all()
    assert torch.equal(outs[2], outs[3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_keys_and_values_are_written_only_to_their_slots(block_size, has_norm, dtype):
    for heads in HEADS:
        step = make_step(STEPS["mixed"], heads, block_size=block_size, dtype=dtype)
        num_normed = heads.num_heads + heads.num_kv_heads
        norm = noise(num_normed, heads.head_dim, dtype=dtype, seed=2) if has_norm else None
        qkv_TX = noise(step.num_rows, (num_normed + heads.num_kv_heads) * heads.head_dim, dtype=dtype)
        rope_PH = noise(400, heads.head_dim, dtype=dtype, seed=1).clamp(-1, 1)
        found = []
        for ops in (TorchOps(), ReferenceOps()):
            keys, values = step.caches()
            out = torch.zeros(step.num_rows, heads.num_heads, heads.head_dim, dtype=dtype)
            ops.begin_step(step.batch)
            ops.qk_norm_rope_kv_write(qkv_TX, norm, 1e-5, rope_PH, keys, values, out=out)
            found.append((out, keys, values))
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])
        touched = written_slots(step.batch, block_size)
        for cache, before in zip(found[0][1:], (step.k_cache_BKGH, step.v_cache_BKGH), strict=True):
            changed = (cache != before).flatten(2).any(-1).nonzero()
            assert set(map(tuple, changed.tolist())) <= touched
            assert len(changed) == len(touched), "some slots were not written"


def written_slots(batch: PagedBatch, block_size: int) -> set[tuple[int, int]]:
    """The (block, slot) of each real token."""
    positions = zip(batch.state_rows_T[: batch.num_tokens].tolist(), batch.positions_T.tolist(), strict=False)
    return {(int(batch.block_tables_SB[row, at // block_size]), at % block_size) for row, at in positions}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(8, 1), (8, 64), (16, 37), (64, 576), (8, 1000)])
def test_norms_equal_the_reference(rows: int, width: int, dtype: torch.dtype):
    x, residual = noise(rows, width, dtype=dtype), noise(rows, width, dtype=dtype, seed=1)
    weight = noise(width, dtype=dtype, seed=2)

    def run(ops: Ops) -> Tensor:
        plain, added, summed = torch.zeros_like(x), torch.zeros_like(x), residual.clone()
        ops.rms_norm(x, weight, 1e-5, out=plain)
        ops.add_rms_norm(x, summed, weight, 1e-5, out=added)
        in_place, copied = torch.cat([residual, x, residual], dim=1), torch.zeros_like(x)
        middle = in_place[:, width : 2 * width]
        ops.rms_norm(middle, weight, 1e-5, out=middle)
        assert torch.equal(middle, plain) and torch.equal(in_place[:, :width], residual)
        ops.add_rms_norm(x, (again := residual.clone()), None, 1e-5, out=copied)
        assert torch.equal(copied, again) and torch.equal(again, summed)
        return torch.stack([plain, added, summed])

    torch.testing.assert_close(*both(run), **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "features", "outputs"), [(8, 1, 1), (8, 64, 48), (16, 37, 101), (136, 96, 7)])
def test_linear_and_logits_equal_the_reference(rows: int, features: int, outputs: int, dtype: torch.dtype):
    x, matrix = noise(rows, features, dtype=dtype), noise(outputs, features, dtype=dtype, seed=1) / features**0.5
    for bias in (None, noise(outputs, dtype=dtype, seed=2)):
        weight = LinearWeight(matrix, bias)
        ours, expected = both(lambda ops: call(ops.linear, x, weight, rows, outputs, dtype))  # noqa: B023
        torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])
    ours, expected = both(lambda ops: call(ops.logits, x, LinearWeight(matrix), rows, outputs, torch.float32))
    torch.testing.assert_close(ours, expected, **TOLERANCES[dtype])


def call(op: Any, x: Tensor, weight: LinearWeight, rows: int, outputs: int, dtype: torch.dtype) -> Tensor:
    """The result of an operation that writes [rows, outputs]."""
    out = torch.full((rows, outputs), 7.0, dtype=dtype)
    op(x, weight, out=out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(8, 1), (8, 96), (16, 13), (64, 1536), (8, 40_000)])
@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_gates_equal_the_reference(name: str, rows: int, width: int, dtype: torch.dtype):
    gate_up = 3 * noise(rows, 2 * width, dtype=dtype)

    def run(ops: Ops) -> Tensor:
        out = torch.zeros(rows, width, dtype=dtype)
        getattr(ops, name)(gate_up, out=out)
        return out

    torch.testing.assert_close(*both(run), **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embed_and_gather_rows_copy_exactly(dtype: torch.dtype):
    table = noise(50, 12, dtype=dtype)
    ids = torch.tensor([0, 49, 7, 7, 1, 0, 0, 0])
    for ops in (TorchOps(), ReferenceOps()):
        embedded, gathered = torch.zeros(8, 12, dtype=dtype), torch.zeros(8, 12, dtype=dtype)
        ops.embed(ids, LinearWeight(table), 1.0, out=embedded)
        ops.gather_rows(table, ids, out=gathered)
        assert torch.equal(embedded, table[ids]) and torch.equal(gathered, table[ids])
        ops.embed(ids, LinearWeight(table), 2.3, out=embedded)
        assert torch.equal(embedded, (table[ids].float() * 2.3).to(dtype)), "rounded once"


def test_a_step_of_padding_writes_and_attends_to_nothing():
    heads = Heads(2, 1, 16)
    step = make_step([(5, 1)], heads)
    empty = PagedBatch(
        0, torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64), step.batch.block_tables_SB, 16
    )
    for ops in (TorchOps(), ReferenceOps()):
        keys, values = step.caches()
        out, attended = torch.ones(8, 2, 16), torch.ones(8, 2, 16)
        ops.begin_step(empty)
        ops.qk_norm_rope_kv_write(noise(8, 64), None, 1e-5, noise(4, 16), keys, values, out=out)
        ops.paged_attention(out, keys, values, 1.0, None, out=attended)
        assert torch.equal(keys, step.k_cache_BKGH) and torch.equal(values, step.v_cache_BKGH)
        assert (attended == 0).all()


def test_a_step_without_logit_rows_works():
    """A chunk that ends inside a prompt samples nothing."""
    weight = LinearWeight(noise(30, 12))
    for ops in (TorchOps(), ReferenceOps()):
        last, logits = torch.zeros(0, 12), torch.zeros(0, 30)
        ops.gather_rows(noise(8, 12), torch.zeros(0, dtype=torch.int64), out=last)
        ops.logits(last, weight, out=logits)


def cache_of(layers: int, blocks: int, block: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """A cache [L, 2, B, K, G, H] of random bits, also NaN, infinities and negative zeros."""
    num_bytes = 2 * layers * blocks * block[0] * block[1] * block[2] * dtype.itemsize
    bits = torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(dtype).view(layers, 2, blocks, *block)


COPIES = {
    "none": [],
    "one": [(3, 9)],
    "a source used several times": [(3, 9), (3, 1), (7, 2), (3, 8)],
    "many": [(source, source + 6) for source in range(6)],
}
CACHES = [(1, (8, 1, 1)), (3, (16, 3, 5)), (2, (1, 2, 7)), (30, (16, 3, 64))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("copies", COPIES.values(), ids=COPIES)
def test_copied_and_swapped_blocks_equal_those_of_the_reference(copies: list[tuple[int, int]], dtype: torch.dtype):
    pairs_C2 = torch.tensor(copies, dtype=torch.int64).view(-1, 2)
    for layers, block in CACHES:
        device, host = cache_of(layers, 12, block, dtype), cache_of(layers, 15, block, dtype, seed=1)
        copied = both(lambda ops: copy_within(ops, device, pairs_C2))  # noqa: B023
        swapped = both(lambda ops: swap(ops, device, host, pairs_C2))  # noqa: B023
        for ours, expected in (copied, swapped):
            assert torch.equal(ours.view(torch.uint8), expected.view(torch.uint8))
        changed = (copied[0].view(torch.uint8) != device.view(torch.uint8)).transpose(0, 2).flatten(1).any(1)
        assert set(changed.nonzero().flatten().tolist()) == {target for _, target in copies}


def copy_within(ops: Ops, cache: Tensor, pairs_C2: Tensor) -> Tensor:
    """The cache after the copies."""
    out = cache.clone()
    ops.copy_blocks(pairs_C2, out=out)
    return out


def swap(ops: Ops, blocks: Tensor, other: Tensor, pairs_C2: Tensor) -> Tensor:
    """The other cache, whose blocks are contiguous, after copies from the first one."""
    out = other.transpose(0, 2).contiguous().transpose(0, 2)
    ops.swap_blocks(blocks, pairs_C2, out=out)
    return out.contiguous()


def test_copies_run_on_one_thread_and_restore_the_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    used, copy = [], torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *lists: (used.append(torch.get_num_threads()), copy(*lists)))
    torch.set_num_threads(2)
    cache = cache_of(2, 4, (8, 1, 4), torch.float32)
    TorchOps().copy_blocks(torch.tensor([[1, 2]]), out=cache)
    with pytest.raises(RuntimeError):
        TorchOps().swap_blocks(cache_of(2, 4, (16, 1, 4), torch.float32), torch.tensor([[1, 2]]), out=cache)
    assert used == [1, 1] and torch.get_num_threads() == 2
