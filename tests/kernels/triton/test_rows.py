"""What the host changes in the state rows, and what a step leaves in them, on the GPU or in the interpreter."""

from __future__ import annotations

import random

import pytest
import torch

from app.kernels.triton import row_layout, rows
from tests.kernels.triton.sampling_rows import DEVICE, WILD

# The interpreter's `range` makes numbers of arrays of one element.
WIDTH = row_layout.row_width(8)


def ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def some_state(num_rows):
    """State rows full of different numbers."""
    return torch.arange(num_rows * WIDTH, dtype=torch.int32, device=DEVICE).view(num_rows, WIDTH) + 1000


# --- Changes of the host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_only_the_first_changes_are_made(count):
    generator = torch.Generator().manual_seed(count)
    offsets = torch.randperm(5000, generator=generator)[:700]
    values = torch.randint(-(2**31), 2**31, (700,), generator=generator)
    changes = torch.stack([offsets, values], dim=1).int().to(DEVICE)
    memory = torch.full((5000,), WILD, dtype=torch.int32, device=DEVICE)
    rows.scatter(changes, ints([count]), out=memory)
    expected = torch.full((5000,), WILD, dtype=torch.int32)
    expected[offsets[:count]] = values[:count].int()
    assert torch.equal(memory.cpu(), expected)


# --- The inputs of a step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 300])
def test_decodes_stand_where_their_rows_do(count):
    state = some_state(40)
    draw_rows = [random.Random(count).randrange(40) for _ in range(count - 1)] + [0]
    ids, positions, state_rows = torch.full((3, count), WILD, dtype=torch.int32, device=DEVICE)
    rows.gather_decodes(state, ints(draw_rows), ids_T=ids, positions_T=positions, state_rows_T=state_rows)
    assert state_rows.tolist() == draw_rows
    assert ids.tolist() == [int(state[row, row_layout.TOKEN]) if row else 0 for row in draw_rows]
    assert positions.tolist() == [int(state[row, row_layout.POSITION]) if row else -1 for row in draw_rows]


def test_decodes_take_nothing_from_behind_their_row_list():
    ids, positions, state_rows = torch.full((3, 20), WILD, dtype=torch.int32, device=DEVICE)
    draw_rows = ints([3] * 20)
    rows.gather_decodes(
        some_state(4), draw_rows[:6], ids_T=ids[:6], positions_T=positions[:6], state_rows_T=state_rows[:6]
    )
    assert (torch.stack([ids, positions, state_rows])[:, 6:] == WILD).all()


def test_unknown_tokens_are_those_of_their_rows():
    state = some_state(6)
    ids, state_rows = ints([7, -1, 0, -1, -1, 9]), ints([1, 2, 0, 5, 0, 5])
    rows.fill_unknown(state, ids_T=ids, state_rows_T=state_rows)
    assert ids.tolist() == [7, int(state[2, row_layout.TOKEN]), 0, int(state[5, row_layout.TOKEN]), 0, 9]


# --- After the draw ------------------------------------------------------------------------------------------------


class Advance:
    """One call with everything poisoned, and what it should leave."""

    def __init__(self, draw_rows, tokens, *, penalized=(), num_rows=8, step=0, places=3, width=50, seen=0):
        count = len(draw_rows)
        self.draw_rows, self.tokens = draw_rows, tokens
        self.state = some_state(num_rows)
        self.state[:, row_layout.FLAGS] = row_layout.FILTERS
        self.state[list(penalized), row_layout.FLAGS] = row_layout.PENALIZES | row_layout.ADJUSTS
        self.seen = torch.full((num_rows, width), seen, dtype=torch.int16, device=DEVICE)
        self.ring = torch.full((places, count + 4), WILD, dtype=torch.int32, device=DEVICE)
        self.counter = ints([step])
        rng = random.Random(count)
        self.logit_rows = rng.sample(range(2 * count), count)
        self.positions = [rng.randrange(100, 9000) for _ in range(2 * count)]
        self.before = self.state.clone(), self.seen.clone(), self.ring.clone()
        rows.advance(
            self.state, self.seen, ints(tokens), ints(draw_rows), ints(self.logit_rows), ints(self.positions),
            ring_KR=self.ring, counter=self.counter,
        )  # fmt: skip

    def check(self):
        """Compare with what plain Python leaves."""
        state, seen, ring = self.before
        place = (int(self.counter) - 1) % len(ring)
        ring[place, : len(self.tokens)] = ints(self.tokens)
        for row, token, logit_row in zip(self.draw_rows, self.tokens, self.logit_rows, strict=True):
            if row:
                state[row, row_layout.TOKEN] = max(token, 0)
                state[row, row_layout.POSITION] = self.positions[logit_row] + 1
                if state[row, row_layout.FLAGS] & row_layout.PENALIZES:
                    seen[row, token] += row_layout.SEEN_ONCE
        assert torch.equal(self.state, state)
        assert torch.equal(self.seen, seen)
        assert torch.equal(self.ring, ring)


def test_rows_stand_at_the_tokens_that_they_drew():
    done = Advance([3, 0, 7, 1, 0], [11, 5, 0, 49, 2], penalized=[7, 1])
    assert int(done.counter) == 1
    done.check()


def test_the_ring_says_where_no_token_was_drawn_and_the_row_stands_at_the_first():
    Advance([3, 5, 7], [11, row_layout.NO_TOKEN, 4], penalized=[7]).check()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 300])
def test_any_number_of_rows_advances(count):
    rng = random.Random(count)
    draw_rows = rng.sample(range(1, 400), count)
    tokens = [rng.randrange(50) for _ in draw_rows]
    Advance(draw_rows, tokens, num_rows=400, penalized=range(0, 400, 3), step=5).check()


def test_the_last_of_several_draws_of_a_row_counts_and_all_are_seen():
    Advance([4, 4, 4, 2, 2, 4, 0, 0], [9, 8, 9, 9, 9, 8, 9, 9], penalized=[4, 2, 0], seen=1).check()
    rng = random.Random(1)
    draw_rows = [rng.randrange(6) for _ in range(100)]
    Advance(draw_rows, [rng.randrange(4) for _ in draw_rows], penalized=[1, 2, 3], step=1).check()


@pytest.mark.parametrize("in_prompt", [0, 1])
def test_counts_stop_at_the_largest_number(in_prompt):
    done = Advance([2, 2, 2], [9, 9, 9], penalized=[2], seen=2**15 - 4 + in_prompt)
    assert int(done.seen[2, 9]) == 2**15 - 2 + in_prompt


def test_places_of_the_ring_take_turns_and_the_counter_never_overflows():
    for step in (1, 2, 3):
        Advance([1, 2], [7, 8], step=step).check()
    last = (2**31 - 1) // 3 * 3 - 1
    done = Advance([1, 2], [7, 8], step=last)
    assert int(done.counter) == 0
    assert done.ring[last % 3, :2].tolist() == [7, 8]
