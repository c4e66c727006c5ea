"""What reaches the device of a plan: everything it does not know, and nothing else."""

from __future__ import annotations

import pytest
import torch

from app.contract.sampling_params import SamplingParams
from app.engine.execute.gpu.inputs import DeviceInputs
from app.engine.execute.gpu.memory import Staging, StepMemory
from app.engine.execute.gpu.shapes import StepShape, StepShapes
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID
from app.engine.schedule.step_plan import Chunk, Chunks, RowStart, SampleRow, StepPlan, TableWrite
from app.kernels.triton.row_layout import POSITION, TABLE, TOKEN
from app.kernels.triton.work import FIRST_ROW, HEADER, NUM_PIECES, NUM_ROWS, NUM_TILES, PIECE_WIDTH, MixedWork
from tests.engine.execute.gpu.fake_device import FakeDevice
from tests.engine.execute.gpu.made_grids import grids

SEQS, BLOCKS, TOKENS = 6, 5, 40
FEW = grids().mixed_programs[0]


class Made:
    """A device's memory and a way to it; what is sent is counted."""

    def __init__(self, max_logit_rows: int = SEQS) -> None:
        self.device = FakeDevice()
        work = MixedWork(grids(), SEQS, TOKENS)
        length = work.sizes.length
        self.memory = StepMemory(self.device.torch_device, SEQS, BLOCKS, TOKENS, max_logit_rows, length, 16)
        self.staging = Staging(self.device, self.memory.buffer)
        self.inputs = DeviceInputs(
            self.memory, StepShapes(SEQS, TOKENS, max_logit_rows, 80, grids()), work, self.staging
        )

    def take(self, plan: StepPlan) -> StepShape | None:
        """Lay a plan out and let the device have it; whether anything was sent is in `has_sent`."""
        shape = self.inputs.stage(plan)
        before = self.memory.buffer.clone()
        self.staging.flush()
        self.has_sent = bool(self.device._queue)
        self.device.synchronize()
        self.changed = (before != self.memory.buffer).nonzero().flatten().tolist()
        return shape

    def draw(self, shape: StepShape, tokens: dict[int, int]) -> None:
        """What the device does with its rows after a step: `tokens` by state row."""
        inputs = self.memory.inputs(shape)
        for row, token_id in tokens.items():
            index = inputs.sampled_rows_R.tolist().index(row)
            position = (
                self.memory.state_SW[row, POSITION]
                if shape.is_decode
                else inputs.positions_T[int(inputs.logit_rows_R[index])]
            )
            self.memory.state_SW[row, TOKEN], self.memory.state_SW[row, POSITION] = token_id, int(position) + 1


def start(row: int) -> RowStart:
    return RowStart(row, 10 + row, 0, RowSampling.of(SamplingParams(temperature=0.0, seed=0)), (1, 2, 3), ())


def plan(*chunks: tuple[int, int, tuple[int, ...]], draws: bool = True, **rest: object) -> StepPlan:
    """A plan over (row, start, token ids); each chunk draws from its last token."""
    ends = torch.tensor([len(tokens) for _, _, tokens in chunks]).cumsum(0).tolist()
    return StepPlan(
        step=1,
        chunks=Chunks.of(Chunk(row, 10 + row, first, tokens) for row, first, tokens in chunks),
        logit_rows=tuple(end - 1 for end in ends) if draws else (),
        sampled=tuple(SampleRow(row, 10 + row) for row, _, _ in chunks) if draws else (),
        **rest,
    )


def pieces(work: torch.Tensor) -> list[tuple[int, int]]:
    """The first row and the number of rows of each piece."""
    assert work[NUM_TILES] == 0
    numbers = work[HEADER:][: int(work[NUM_PIECES]) * PIECE_WIDTH].view(-1, PIECE_WIDTH)
    return sorted((int(piece[FIRST_ROW]), int(piece[NUM_ROWS])) for piece in numbers)


def prefilled() -> Made:
    """Rows 1 and 2 have computed prompts of three and two tokens, and drawn 70 and 80."""
    made = Made()
    shape = made.take(plan((1, 0, (5, 6, 7)), (2, 0, (8, 9)), row_starts=(start(1), start(2))))
    made.draw(shape, {1: 70, 2: 80})
    return made


def test_prompts_are_laid_out_with_padding_behind_them():
    made = Made()
    shape = made.take(plan((1, 0, (5, 6, 7)), (4, 16, (8, 9)), row_starts=(start(1), start(4))))
    assert shape == StepShape(40, 8, False, FEW)
    inputs = made.memory.inputs(shape)
    assert inputs.ids_T.tolist() == [5, 6, 7, 8, 9] + 35 * [0]
    assert inputs.positions_T.tolist() == [0, 1, 2, 16, 17] + 35 * [-1]
    assert inputs.state_rows_T.tolist() == [1, 1, 1, 4, 4] + 35 * [0]
    assert inputs.logit_rows_R.tolist() == [2, 4] + 6 * [0] and inputs.sampled_rows_R.tolist() == [1, 4] + 6 * [0]
    assert pieces(inputs.paged.work) == [(0, 3), (3, 2)]
    assert inputs.paged.num_tokens == 40 and inputs.paged.block_size == 16


def test_a_shorter_step_leaves_nothing_of_a_longer_one():
    made = prefilled()
    shape = made.take(plan((3, 7, (4,)), draws=False))
    inputs = made.memory.inputs(shape)
    assert inputs.positions_T.tolist() == [7] + 39 * [-1] and inputs.sampled_rows_R.tolist() == 8 * [0]
    assert pieces(inputs.paged.work) == [(0, 1)]


def test_block_tables_go_to_their_rows():
    made = Made()
    writes = (TableWrite(2, 0, (7, 8)), TableWrite(2, 3, (9,)), TableWrite(5, 1, (4,)))
    assert made.take(plan(draws=False, table_writes=writes)) is None
    tables = made.memory.inputs(StepShape(8, 8, True)).paged.block_tables_SB
    assert tables[2, :4].tolist() == [7, 8, 0, 9] and tables[5, :2].tolist() == [0, 4]
    assert len(made.changed) == 4


def test_steady_decode_sends_nothing():
    made = prefilled()
    for position in range(3, 9):
        shape = made.take(plan((1, position, (UNKNOWN_TOKEN_ID,)), (2, position - 1, (UNKNOWN_TOKEN_ID,))))
        assert shape == StepShape(2, 2, True, 32)
        assert not made.has_sent
        made.draw(shape, {1: 0, 2: 0})
    assert made.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_a_row_that_ends_or_comes_is_all_that_is_sent():
    made = prefilled()
    shape = made.take(plan((1, 3, (70,)), (2, 2, (80,))))
    made.draw(shape, {1: 71, 2: 81})
    shape = made.take(plan((2, 3, (UNKNOWN_TOKEN_ID,))))
    assert shape == StepShape(1, 1, True, 32) and made.memory.inputs(shape).sampled_rows_R.tolist() == [2]
    assert len(made.changed) == 1
    made.draw(shape, {2: 82})
    shape = made.take(plan((2, 4, (82,)), (1, 4, (71,)), (3, 9, (33,)), row_starts=(start(3),)))
    assert made.memory.inputs(shape).sampled_rows_R.tolist() == [2, 1, 3, 0][: shape.num_logit_rows]
    assert made.memory.state_SW[3, TOKEN] == 33 and made.memory.state_SW[3, POSITION] == 9


def test_a_smaller_batch_of_the_same_rows_needs_no_new_padding():
    made = prefilled()
    shape = made.take(plan((1, 3, (70,)), (2, 2, (80,)), (3, 5, (1,)), row_starts=(start(3),)))
    assert shape.num_rows == 4
    inputs = made.memory.inputs(StepShape(4, 4, True))
    assert inputs.sampled_rows_R.tolist() == [1, 2, 3, 0]


def test_a_known_token_that_the_device_does_not_have_is_sent():
    made = prefilled()
    made.inputs.invalidate_rows([2])
    shape = made.take(plan((1, 3, (UNKNOWN_TOKEN_ID,)), (2, 2, (81,))))
    assert shape.is_decode and made.memory.state_SW[2, TOKEN] == 81 and made.memory.state_SW[2, POSITION] == 2
    assert made.memory.state_SW[1, TOKEN] == 70


def test_a_token_that_nobody_knows_is_a_bug():
    made = prefilled()
    made.inputs.invalidate_rows([2])
    with pytest.raises(AssertionError, match="on the device only"):
        made.take(plan((1, 3, (70,)), (2, 2, (UNKNOWN_TOKEN_ID,))))


def test_beside_a_prompt_unknown_tokens_are_left_to_the_device():
    made = prefilled()
    shape = made.take(plan((1, 3, (UNKNOWN_TOKEN_ID,)), (2, 2, (80,)), (4, 0, (5, 6)), row_starts=(start(4),)))
    inputs = made.memory.inputs(shape)
    assert not shape.is_decode and inputs.ids_T[:4].tolist() == [-1, 80, 5, 6]
    made.draw(shape, {1: 71, 2: 81, 4: 41})
    shape = made.take(plan((1, 4, (UNKNOWN_TOKEN_ID,)), (2, 3, (UNKNOWN_TOKEN_ID,)), (4, 2, (UNKNOWN_TOKEN_ID,))))
    assert shape.is_decode and not set(made.changed) & set(range(SEQS * made.memory.width))


def test_after_a_guess_the_next_token_is_sent():
    """Two draws of one row: only the host knows which of them count."""
    made = prefilled()
    guess = StepPlan(1, Chunks.of([Chunk(1, 11, 3, (70, 71))]), (0, 1), (SampleRow(1, 11), SampleRow(1, 11)))
    shape = made.take(guess)
    assert shape == StepShape(40, 8, False, FEW) and made.memory.inputs(shape).sampled_rows_R.tolist() == [
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    shape = made.take(plan((1, 4, (99,))))
    assert shape.is_decode and made.memory.state_SW[1, TOKEN] == 99 and made.memory.state_SW[1, POSITION] == 4


def test_many_answers_to_a_short_prompt_draw_from_one_row():
    """More draws than tokens: the shape has room for both."""
    made = Made(max_logit_rows=40)
    draws = tuple(SampleRow(row, 10 + row) for row in range(1, SEQS + 1)) * 3
    starts = tuple(start(row) for row in range(1, SEQS + 1))
    shape = made.take(StepPlan(1, Chunks.of([Chunk(1, 11, 0, (5, 6))]), (1,) * len(draws), draws, row_starts=starts))
    inputs = made.memory.inputs(shape)
    assert shape.num_logit_rows >= len(draws) == 18
    assert inputs.sampled_rows_R[: len(draws)].tolist() == [row for row, _ in draws]
    assert inputs.positions_T[:3].tolist() == [0, 1, -1]


def test_inputs_of_a_step_that_failed_before_it_was_sent_are_sent_again():
    made = prefilled()
    made.inputs.stage(plan((1, 3, (70,)), (2, 2, (80,))))
    shape = made.take(plan((1, 3, (70,)), (2, 2, (80,)), row_starts=(start(1), start(2))))
    assert made.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_what_was_overwritten_is_sent_again():
    made = prefilled()
    shape = made.take(plan((1, 3, (70,)), (2, 2, (80,))))
    made.draw(shape, {1: 71, 2: 81})
    made.memory.pad()
    made.inputs.invalidate_inputs()
    shape = made.take(plan((1, 4, (UNKNOWN_TOKEN_ID,)), (2, 3, (UNKNOWN_TOKEN_ID,))))
    assert made.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_padding_covers_all_inputs_and_no_row():
    made = prefilled()
    state = made.memory.state_SW.clone()
    made.memory.pad()
    inputs = made.memory.inputs(StepShape(40, 8, False, FEW))
    assert (inputs.positions_T == -1).all() and not inputs.sampled_rows_R.any() and not inputs.paged.work.any()
    assert torch.equal(made.memory.state_SW, state) and TABLE > POSITION
