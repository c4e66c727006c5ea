"""Norm, rotation and cache write on the GPU, or in the interpreter, compared with the reference."""

import pytest
import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.layers import rotate
from tests.cases import grid
from tests.kernels.batches import Heads, make_step, noise
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
CHUNKS = [(0, 1), (5, 1), (31, 4), (0, 7), (64, 1)]
HEADS = [Heads(4, 2, 64), Heads(3, 1, 24), Heads(14, 2, 64), Heads(2, 2, 96), Heads(1, 1, 256), Heads(16, 8, 128)]


class Case:
    """The inputs of a step on the device, with padding rows at position -1, and the reference's results."""

    def __init__(self, heads: Heads, dtype: torch.dtype, *, normed: bool, block_size: int = 16, scaled: bool = False):
        step = make_step(CHUNKS, heads, block_size=block_size, dtype=dtype)
        self.heads, self.batch, self.block_size = heads, step.batch, block_size
        self.caches = [cache.to(DEVICE) for cache in step.caches()]
        num_rotated = heads.num_heads + heads.num_kv_heads
        self.weight = noise(num_rotated, heads.head_dim, dtype=dtype, seed=7) if normed else None
        self.qkv = noise(step.num_rows, (num_rotated + heads.num_kv_heads) * heads.head_dim, dtype=dtype, seed=8)
        angles = torch.outer(torch.arange(100.0), 0.7 ** torch.arange(heads.head_dim / 2))
        self.rope = torch.cat([angles.cos(), angles.sin()], -1)
        self.query_scale = 1 + torch.log1p(torch.arange(100) // 8) if scaled else None
        self.expected = torch.empty(step.num_rows, heads.num_heads, heads.head_dim, dtype=dtype)
        self.expected_caches = step.caches()
        reference = ReferenceOps()
        reference.begin_step(step.batch)
        reference.qk_norm_rope_kv_write(
            self.qkv, self.weight, 1e-6, self.rope, *self.expected_caches, self.query_scale, out=self.expected
        )
        self.expected[step.batch.num_tokens :] = 0

    def run(self) -> torch.Tensor:
        """Run the kernel on the caches; return the queries."""
        batch: PagedBatch = self.batch
        positions = batch.positions_T.int()
        positions[batch.num_tokens :] = -1
        out = torch.full_like(self.expected, torch.nan, device=DEVICE)
        rotate.qk_norm_rope_kv_write(
            self.qkv.to(DEVICE), None if self.weight is None else self.weight.to(DEVICE), 1e-6, self.rope.to(DEVICE),
            *self.caches, batch.block_tables_SB.to(DEVICE), positions.to(DEVICE), batch.state_rows_T.int().to(DEVICE),
            self.block_size, None if self.query_scale is None else self.query_scale.to(DEVICE), out=out,
        )  # fmt: skip
        return out


def is_usual(heads: Heads, normed: bool, dtype: torch.dtype) -> bool:
    """All heads with one type, normed; few heads also with the others, and plain."""
    return heads == HEADS[1] or (normed and dtype == torch.bfloat16)


@pytest.mark.parametrize(("heads", "normed", "dtype"), grid(is_usual, HEADS, (True, False), TOLERANCE), ids=str)
def test_queries_are_rotated_and_keys_and_values_written_to_their_slots(heads, normed, dtype):
    case = Case(heads, dtype, normed=normed)
    out = case.run().cpu()
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out, case.expected, **tolerance)
    torch.testing.assert_close(case.caches[0].cpu(), case.expected_caches[0], **tolerance)
    assert torch.equal(case.caches[1].cpu(), case.expected_caches[1]), "values are copied exactly"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_queries_are_multiplied_by_the_scale_of_their_position_and_keys_are_not(dtype):
    case = Case(HEADS[1], dtype, normed=True, scaled=True)
    out = case.run().cpu()
    largest = float(case.query_scale.max())
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out, case.expected, rtol=TOLERANCE[dtype], atol=largest * TOLERANCE[dtype])
    torch.testing.assert_close(case.caches[0].cpu(), case.expected_caches[0], **tolerance)
    assert torch.equal(case.caches[1].cpu(), case.expected_caches[1])
    plain = Case(HEADS[1], dtype, normed=True).run().cpu()
    positions = case.batch.positions_T[: case.batch.num_tokens]
    is_scaled = positions >= 8
    assert is_scaled.any() and not is_scaled.all()
    rows = torch.arange(len(positions))
    assert torch.equal(out[rows[~is_scaled]], plain[rows[~is_scaled]])
    assert not torch.equal(out[rows[is_scaled]], plain[rows[is_scaled]])


def test_a_scaled_query_is_rounded_before_and_after():
    """In float16 1 + 2^-11 becomes 1, and so does its scale; exact, the product would be one step above 1."""
    case = Case(Heads(1, 1, 8), torch.float16, normed=False, scaled=True)
    case.qkv[:], case.rope[:] = 1.0, torch.tensor([1 + 2**-11] * 4 + [0.0] * 4)
    case.query_scale[:] = 1 + 2**-11
    out = case.run()[: case.batch.num_tokens]
    assert torch.equal(out, torch.ones_like(out))


@pytest.mark.parametrize("block_size", [1, 5, 32])
def test_any_block_size_is_supported(block_size):
    case = Case(Heads(4, 2, 32), torch.float32, normed=True, block_size=block_size)
    torch.testing.assert_close(case.run().cpu(), case.expected, rtol=4e-6, atol=4e-6)
    for cache, expected in zip(case.caches, case.expected_caches, strict=True):
        torch.testing.assert_close(cache.cpu(), expected, rtol=4e-6, atol=4e-6)


def test_only_the_slots_of_real_rows_change():
    case = Case(Heads(4, 2, 32), torch.float16, normed=True)
    before = [cache.clone() for cache in case.caches]
    case.run()
    for cache, old, expected in zip(case.caches, before, case.expected_caches, strict=True):
        untouched = (expected == old.cpu()).all(-1)
        assert torch.equal(cache.cpu()[untouched], old.cpu()[untouched])
        assert int((~untouched).sum()) == 2 * case.batch.num_tokens


def test_the_caches_may_be_parts_of_one_tensor_of_all_layers():
    case = Case(Heads(4, 2, 32), torch.float32, normed=False)
    layers = torch.full((3, 2, *case.caches[0].shape), 7.0, device=DEVICE)
    layers[1, 0], layers[1, 1] = case.caches
    case.caches = [layers[1, 0], layers[1, 1]]
    case.run()
    torch.testing.assert_close(layers[1].cpu(), torch.stack(case.expected_caches), rtol=4e-6, atol=4e-6)
    assert (layers[0] == 7).all() and (layers[2] == 7).all()


def test_an_fp8_cache_has_values_clamped_to_its_range():
    case = Case(Heads(4, 2, 64), torch.float32, normed=False)
    case.qkv[0] *= 1e5
    case.expected_caches = [torch.zeros_like(cache) for cache in case.expected_caches]
    case.caches = [cache.zero_().to(torch.float8_e4m3fn) for cache in case.caches]
    reference = ReferenceOps()
    reference.begin_step(case.batch)
    reference.qk_norm_rope_kv_write(case.qkv, None, 1e-6, case.rope, *case.expected_caches, out=case.expected)
    case.expected[case.batch.num_tokens :] = 0
    torch.testing.assert_close(case.run().cpu(), case.expected, rtol=4e-6, atol=4e-6)
    for cache, expected in zip(case.caches, case.expected_caches, strict=True):
        stored = cache.cpu().float()
        wanted = expected.clamp(-448, 448)
        near = (stored - wanted).abs() <= 0.07 * wanted.abs() + 2**-9
        # The interpreter loses the carry if rounding up reaches the next power of two.
        assert near.all() or (DEVICE == "cpu" and (near | (stored.abs() >= 0.49 * wanted.abs())).all())
        assert near.float().mean() > 0.99
        assert stored.abs().max() == 448


def test_no_rows_launch_no_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rotate, "_rotate_kernel", None)  # a launch would raise
    cache, ints = torch.zeros(2, 4, 1, 8, device=DEVICE), torch.zeros(0, dtype=torch.int32, device=DEVICE)
    rotate.qk_norm_rope_kv_write(
        torch.empty(0, 24, device=DEVICE), None, 1e-6, torch.ones(4, 8, device=DEVICE), cache, cache,
        torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), ints, ints, 4, out=torch.empty(0, 1, 8, device=DEVICE),
    )  # fmt: skip
