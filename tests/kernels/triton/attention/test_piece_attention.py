"""Attention in pieces against the reference: rows that decode, short chunks behind long prefixes; and the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from app.kernels.triton.attention.attention_configs import AttentionConfig, attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.piece_attention import piece_attention, piece_scratch_sizes
from app.kernels.triton.attention.work import FIRST_SLOT, HEADER, NUM_SPLITS, PIECE_WIDTH, MixedWork
from tests.cases import long
from tests.kernels.batches import Heads, noise
from tests.kernels.triton.batches import DEVICE, device_batch, poison_unused, reference_attention, work_tensor

CONFIG = AttentionConfig(block_m=16, block_n=32, num_warps=4, num_stages=2)
HEADS = Heads(8, 2, 32)
# (tokens before, new ones): rows that decode; short chunks behind short and long prefixes; one too long for pieces.
CHUNKS = ((40, 1), (0, 1), (200, 1), (3, 5), (150, 6), (20, 16), (0, 17))
NUM_SHORT_ROWS = 30
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _pieces_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of a few blocks are cut too; an interpreted block takes milliseconds."""
    monkeypatch.setattr("app.kernels.triton.attention.work.MIN_PIECE_TOKENS", 64)


def lists(heads: Heads, *, config=CONFIG, split_tokens=None, processors=8) -> MixedWork:
    group = heads.num_heads // heads.num_kv_heads
    grids = AttentionGrids(group, heads.num_kv_heads, processors, config, config, config, split_tokens)
    return MixedWork(grids, 8, 256)


def attend(batch, step, q, work, *, window=None, softcap=None, scale=0.3, num_programs=None, **options):
    """Run the kernel into poisoned outputs and scratch; check that the counters are zeros again."""
    sizes, config = work.sizes, work.grids.pieces
    floats, ints = piece_scratch_sizes(sizes.slots, step.k_cache_BKGH.shape[2], q.shape[2], config.block_m)
    counters, out = torch.zeros(ints, dtype=torch.int32, device=DEVICE), torch.full_like(q, float("nan"))
    piece_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, batch.work, batch.work[HEADER : sizes.first_tile].view(-1, PIECE_WIDTH), scale, window,
        softcap, partials=torch.full((floats,), float("nan"), device=DEVICE), counters=counters, config=config,
        num_programs=num_programs or batch.num_splits, split_tokens=work.grids.split_tokens, out=out, **options,
    )  # fmt: skip
    assert not counters.any()
    return out


def check(
    heads=HEADS, *, chunks=CHUNKS, num_short=NUM_SHORT_ROWS, dtype=torch.float32, window=None, softcap=None, **options
):
    work = lists(heads, **options)
    batch, step = device_batch(chunks, heads, num_rows=56, work=work, dtype=dtype)
    poison_unused(step)
    q = noise(batch.num_tokens, heads.num_heads, heads.head_dim, dtype=dtype).to(DEVICE)
    out = attend(batch, step, q, work, window=window, softcap=softcap)
    expected = reference_attention(step, q, 0.3, window, softcap)[:num_short]
    assert out.dtype == dtype
    torch.testing.assert_close(out[:num_short].float(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert out[num_short:].isnan().all(), "rows of long chunks and padding are not this kernel's"


@pytest.mark.parametrize("dtype", [torch.float32, long(torch.float16), torch.bfloat16])
def test_decoding_rows_and_short_chunks_agree_with_the_reference_and_others_are_left_alone(dtype):
    check(dtype=dtype)


@pytest.mark.parametrize(
    ("window", "split_tokens"), [(1, 64), (33, None), (100, 64), long(1, None), long(33, 64), long(100, None)]
)
def test_a_window_hides_what_lies_before_it(window, split_tokens):
    check(window=window, split_tokens=split_tokens)


@pytest.mark.parametrize(
    ("softcap", "window", "split_tokens"), [(2.0, None, None), (0.5, 33, 64), long(2.0, None, 64), long(2.0, 100, None)]
)
def test_scores_are_kept_below_a_cap(softcap, window, split_tokens):
    check(window=window, softcap=softcap, split_tokens=split_tokens)


def test_heads_may_be_256_wide():
    config = attention_config("pieces", 256, torch.bfloat16, torch.bfloat16, (9, 0))
    check(Heads(4, 1, 256), chunks=((90, 1), (70, 3)), num_short=4, softcap=3.0, config=config)


@pytest.mark.parametrize("heads", [Heads(3, 3, 72), Heads(7, 1, 80), Heads(16, 1, 24), Heads(6, 2, 16)])
def test_any_group_and_head_width_will_do(heads):
    check(heads, chunks=((200, 1), (130, 4), (20, 2)), num_short=7)


def test_a_cache_of_float8_is_read():
    work = lists(HEADS)
    batch, step = device_batch(CHUNKS[:6], HEADS, work=work, dtype=torch.float8_e4m3fn)
    poison_unused(step)
    q = noise(batch.num_tokens, 8, 32, dtype=torch.float16).to(DEVICE)
    out = attend(batch, step, q, work)
    torch.testing.assert_close(out.float(), reference_attention(step, q, 0.3, None), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("num_programs", [1, long(5), long(64)])
def test_any_number_of_programs_goes_through_all_pieces(num_programs):
    work = lists(HEADS)
    batch, step = device_batch(CHUNKS[:6], HEADS, work=work)
    q = noise(batch.num_tokens, 8, 32).to(DEVICE)
    expected = attend(batch, step, q, work)
    assert torch.equal(attend(batch, step, q, work, num_programs=num_programs), expected)


@pytest.mark.parametrize("dtype", [torch.float32, long(torch.float16)])
@pytest.mark.parametrize(("window", "softcap"), [long(None, None), (150, None), (150, 2.0)])
def test_deterministic_rows_have_the_same_bits_however_they_are_cut_and_in_decode_steps_of_any_splits(
    dtype, window, softcap
):
    """Alone or in company, cut into few or many pieces, as chunk or as single rows, in decode steps of every bucket."""
    heads, config, split = Heads(4, 2, 32), AttentionConfig(64, 32, 4, 2), 64
    options = {"config": config, "split_tokens": split}
    work = lists(heads, processors=16, **options)
    whole, step = device_batch([(310, 5), (70, 3), (200, 1)], heads, work=work, dtype=dtype)
    poison_unused(step)
    q = noise(whole.num_tokens, 4, 32, dtype=dtype).to(DEVICE)
    caps = {"window": window, "softcap": softcap}
    expected = attend(whole, step, q, work, **caps)
    reference = reference_attention(step, q, 0.3, window, softcap)
    torch.testing.assert_close(expected.float(), reference, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    for processors in (1, 2, 5):  # fewer programs cut less, and leave more to those that merge
        other = lists(heads, processors=processors, **options)
        made = other.of([310, 70, 200], [5, 3, 1], whole.num_tokens)
        batch = replace(whole, work=work_tensor(made, other.sizes), num_splits=made.num_programs)
        assert torch.equal(attend(batch, step, q, other, **caps), expected)
    rows = torch.tensor([0, 4, 5, 8], device=DEVICE)
    for num_splits in (1, 2, 8):
        decoded, sizes = torch.full_like(q[rows], float("nan")), scratch_sizes(len(rows), 4, 2, 32, num_splits)
        decode_attention(
            q[rows], step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), whole.block_tables_SB,
            whole.positions_T[rows], whole.state_rows_T[rows], 0.3, window, softcap,
            partials=torch.full((sizes[0],), float("nan"), device=DEVICE),
            counters=torch.zeros(sizes[1], dtype=torch.int32, device=DEVICE), num_splits=num_splits, config=config,
            split_tokens=split, out=decoded,
        )  # fmt: skip
        assert torch.equal(decoded, expected[rows]), num_splits


def test_pieces_that_are_cut_have_slots_of_their_own():
    made = lists(HEADS).of([40, 0, 700, 600], [1, 1, 1, 11], 16)
    cut = made.pieces_PX[made.pieces_PX[:, NUM_SPLITS] > 1]
    slots = cut[:, FIRST_SLOT] + cut[:, NUM_SPLITS + 1]
    assert len(cut) and sorted(slots) == list(np.arange(len(cut))) and len(cut) <= lists(HEADS).sizes.slots
