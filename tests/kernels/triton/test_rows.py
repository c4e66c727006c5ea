"""Changes of state rows by the host and by a step, on the GPU or in the interpreter."""

from __future__ import annotations

import random

import pytest
import torch

from app.kernels.triton import row_layout, rows
from tests.kernels.triton.sampling_rows import DEVICE, UNWRITTEN

WIDTH = row_layout.row_width(8)


def ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def some_state(num_rows):
    """State rows with different numbers in all columns."""
    return torch.arange(num_rows * WIDTH, dtype=torch.int32, device=DEVICE).view(num_rows, WIDTH) + 1000


# --- Changes of the host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_only_the_counted_changes_are_written(count):
    generator = torch.Generator().manual_seed(count)
    offsets = torch.randperm(5000, generator=generator)[:700]
    values = torch.randint(-(2**31), 2**31, (700,), generator=generator)
    changes = torch.stack([offsets, values], dim=1).int().to(DEVICE)
    memory = torch.full((5000,), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    rows.scatter(changes, ints([count]), out=memory)
    expected = torch.full((5000,), UNWRITTEN, dtype=torch.int32)
    expected[offsets[:count]] = values[:count].int()
    assert torch.equal(memory.cpu(), expected)


# --- The inputs of a step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 300])
def test_decodes_have_the_tokens_and_positions_of_their_rows(count):
    state = some_state(40)
    sampled_rows = [random.Random(count).randrange(40) for _ in range(count - 1)] + [0]
    ids, positions, state_rows = torch.full((3, count), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    rows.gather_decodes(state, ints(sampled_rows), ids_T=ids, positions_T=positions, state_rows_T=state_rows)
    assert state_rows.tolist() == sampled_rows
    assert ids.tolist() == [int(state[row, row_layout.TOKEN]) if row else 0 for row in sampled_rows]
    assert positions.tolist() == [int(state[row, row_layout.POSITION]) if row else -1 for row in sampled_rows]


def test_decodes_write_nothing_beyond_their_row_list():
    ids, positions, state_rows = torch.full((3, 20), UNWRITTEN, dtype=torch.int32, device=DEVICE)
    sampled_rows = ints([3] * 20)
    rows.gather_decodes(
        some_state(4), sampled_rows[:6], ids_T=ids[:6], positions_T=positions[:6], state_rows_T=state_rows[:6]
    )
    assert (torch.stack([ids, positions, state_rows])[:, 6:] == UNWRITTEN).all()


def test_unknown_tokens_are_filled_in_from_their_rows():
    state = some_state(6)
    ids, state_rows = ints([7, -1, 0, -1, -1, 9]), ints([1, 2, 0, 5, 0, 5])
    rows.fill_unknown(state, ids_T=ids, state_rows_T=state_rows)
    assert ids.tolist() == [7, int(state[2, row_layout.TOKEN]), 0, int(state[5, row_layout.TOKEN]), 0, 9]


# --- After sampling ------------------------------------------------------------------------------------------------


class Advance:
    """One call of `advance`, and the state before it."""

    def __init__(self, sampled_rows, tokens, *, penalized=(), num_rows=8, step=0, ring_size=3, width=50, seen=0):
        count = len(sampled_rows)
        self.sampled_rows, self.tokens = sampled_rows, tokens
        self.state = some_state(num_rows)
        self.state[:, row_layout.FLAGS] = row_layout.FILTERS
        self.state[list(penalized), row_layout.FLAGS] = row_layout.PENALIZES | row_layout.CHANGES_LOGITS
        self.seen = torch.full((num_rows, width), seen, dtype=torch.int16, device=DEVICE)
        self.ring = torch.full((ring_size, count + 4), UNWRITTEN, dtype=torch.int32, device=DEVICE)
        self.counter = ints([step])
        rng = random.Random(count)
        self.logit_rows = rng.sample(range(2 * count), count)
        self.positions = [rng.randrange(100, 9000) for _ in range(2 * count)]
        self.before = self.state.clone(), self.seen.clone(), self.ring.clone()
        rows.advance(
            self.state, self.seen, ints(tokens), ints(sampled_rows), ints(self.logit_rows), ints(self.positions),
            ring_KR=self.ring, counter=self.counter,
        )  # fmt: skip

    def check(self):
        """Compare with the same changes in plain Python."""
        state, seen, ring = self.before
        index = (int(self.counter) - 1) % len(ring)
        ring[index, : len(self.tokens)] = ints(self.tokens)
        for row, token, logit_row in zip(self.sampled_rows, self.tokens, self.logit_rows, strict=True):
            if row:
                state[row, row_layout.TOKEN] = max(token, 0)
                state[row, row_layout.POSITION] = self.positions[logit_row] + 1
                if state[row, row_layout.FLAGS] & row_layout.PENALIZES:
                    seen[row, token] += row_layout.SEEN_ONCE
        assert torch.equal(self.state, state)
        assert torch.equal(self.seen, seen)
        assert torch.equal(self.ring, ring)


def test_rows_advance_to_their_sampled_tokens():
    done = Advance([3, 0, 7, 1, 0], [11, 5, 0, 49, 2], penalized=[7, 1])
    assert int(done.counter) == 1
    done.check()


def test_the_ring_says_where_no_token_was_sampled_and_the_row_stands_at_the_first():
    Advance([3, 5, 7], [11, row_layout.NO_TOKEN, 4], penalized=[7]).check()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 300])
def test_any_number_of_rows_advances(count):
    rng = random.Random(count)
    sampled_rows = rng.sample(range(1, 400), count)
    tokens = [rng.randrange(50) for _ in sampled_rows]
    Advance(sampled_rows, tokens, num_rows=400, penalized=range(0, 400, 3), step=5).check()


def test_the_last_of_several_samples_of_a_row_counts():
    Advance([4, 4, 4, 2, 2, 4, 0, 0], [9, 8, 9, 9, 9, 8, 9, 9], penalized=[4, 2, 0], seen=1).check()
    rng = random.Random(1)
    sampled_rows = [rng.randrange(6) for _ in range(100)]
    Advance(sampled_rows, [rng.randrange(4) for _ in sampled_rows], penalized=[1, 2, 3], step=1).check()


@pytest.mark.parametrize("in_prompt", [0, 1])
def test_counts_saturate_at_the_largest_number(in_prompt):
    done = Advance([2, 2, 2], [9, 9, 9], penalized=[2], seen=2**15 - 4 + in_prompt)
    assert int(done.seen[2, 9]) == 2**15 - 2 + in_prompt


def test_ring_indices_rotate_and_the_counter_never_overflows():
    for step in (1, 2, 3):
        Advance([1, 2], [7, 8], step=step).check()
    last = (2**31 - 1) // 3 * 3 - 1
    done = Advance([1, 2], [7, 8], step=last)
    assert int(done.counter) == 0
    assert done.ring[last % 3, :2].tolist() == [7, 8]


def test_many_rows_have_few_programs_each_and_one_row_one_for_each_block():
    assert [rows.programs_per_row(count, 38) for count in (1, 8, 64, 256, 4096)] == [38, 38, 8, 2, 1]
