"""The inputs that a plan sends to the device: only those that the device does not have."""

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
from app.kernels.triton.attention.work import FIRST_ROW, HEADER, NUM_PIECES, NUM_ROWS, NUM_TILES, PIECE_WIDTH, MixedWork
from app.kernels.triton.row_layout import POSITION, TABLE, TOKEN
from tests.engine.execute.gpu.fake_device import FakeDevice
from tests.engine.execute.gpu.made_grids import grids

SEQS, BLOCKS, TOKENS = 6, 5, 40
FEW = grids().mixed_programs[0]


class InputsSetup:
    """The memory of a device and its staging; records whether data was sent."""

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
        """Stage a plan and send it to the device; `has_sent` is whether there was data to send."""
        shape = self.inputs.stage(plan)
        before = self.memory.buffer.clone()
        self.staging.flush()
        self.has_sent = bool(self.device._queue)
        self.device.synchronize()
        self.changed = (before != self.memory.buffer).nonzero().flatten().tolist()
        return shape

    def sample(self, shape: StepShape, tokens: dict[int, int]) -> None:
        """Update the state rows as the device does after a step; `tokens` by state row."""
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


def plan(*chunks: tuple[int, int, tuple[int, ...]], has_samples: bool = True, **rest: object) -> StepPlan:
    """A plan of chunks (row, start, token ids); each chunk is sampled from its last token."""
    ends = torch.tensor([len(tokens) for _, _, tokens in chunks]).cumsum(0).tolist()
    return StepPlan(
        step=1,
        chunks=Chunks.of(Chunk(row, 10 + row, first, tokens) for row, first, tokens in chunks),
        logit_rows=tuple(end - 1 for end in ends) if has_samples else (),
        sampled=tuple(SampleRow(row, 10 + row) for row, _, _ in chunks) if has_samples else (),
        **rest,
    )


def pieces(work: torch.Tensor) -> list[tuple[int, int]]:
    """The first row and the number of rows of each piece."""
    assert work[NUM_TILES] == 0
    numbers = work[HEADER:][: int(work[NUM_PIECES]) * PIECE_WIDTH].view(-1, PIECE_WIDTH)
    return sorted((int(piece[FIRST_ROW]), int(piece[NUM_ROWS])) for piece in numbers)


def prefilled() -> InputsSetup:
    """A setup in which rows 1 and 2 have computed prompts of three and two tokens, and sampled 70 and 80."""
    setup = InputsSetup()
    shape = setup.take(plan((1, 0, (5, 6, 7)), (2, 0, (8, 9)), row_starts=(start(1), start(2))))
    setup.sample(shape, {1: 70, 2: 80})
    return setup


def test_prompts_are_followed_by_padding():
    setup = InputsSetup()
    shape = setup.take(plan((1, 0, (5, 6, 7)), (4, 16, (8, 9)), row_starts=(start(1), start(4))))
    assert shape == StepShape(40, 8, False, FEW)
    inputs = setup.memory.inputs(shape)
    assert inputs.ids_T.tolist() == [5, 6, 7, 8, 9] + 35 * [0]
    assert inputs.positions_T.tolist() == [0, 1, 2, 16, 17] + 35 * [-1]
    assert inputs.state_rows_T.tolist() == [1, 1, 1, 4, 4] + 35 * [0]
    assert inputs.logit_rows_R.tolist() == [2, 4] + 6 * [0] and inputs.sampled_rows_R.tolist() == [1, 4] + 6 * [0]
    assert pieces(inputs.paged.work) == [(0, 3), (3, 2)]
    assert inputs.paged.num_tokens == 40 and inputs.paged.block_size == 16


def test_a_shorter_step_leaves_nothing_of_a_longer_one():
    setup = prefilled()
    shape = setup.take(plan((3, 7, (4,)), has_samples=False))
    inputs = setup.memory.inputs(shape)
    assert inputs.positions_T.tolist() == [7] + 39 * [-1] and inputs.sampled_rows_R.tolist() == 8 * [0]
    assert pieces(inputs.paged.work) == [(0, 1)]


def test_block_tables_are_written_to_their_rows():
    setup = InputsSetup()
    writes = (TableWrite(2, 0, (7, 8)), TableWrite(2, 3, (9,)), TableWrite(5, 1, (4,)))
    assert setup.take(plan(has_samples=False, table_writes=writes)) is None
    tables = setup.memory.inputs(StepShape(8, 8, True)).paged.block_tables_SB
    assert tables[2, :4].tolist() == [7, 8, 0, 9] and tables[5, :2].tolist() == [0, 4]
    assert len(setup.changed) == 4


def test_steady_decode_sends_nothing():
    setup = prefilled()
    for position in range(3, 9):
        shape = setup.take(plan((1, position, (UNKNOWN_TOKEN_ID,)), (2, position - 1, (UNKNOWN_TOKEN_ID,))))
        assert shape == StepShape(2, 2, True, 32)
        assert not setup.has_sent
        setup.sample(shape, {1: 0, 2: 0})
    assert setup.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_only_rows_that_end_or_start_are_sent():
    setup = prefilled()
    shape = setup.take(plan((1, 3, (70,)), (2, 2, (80,))))
    setup.sample(shape, {1: 71, 2: 81})
    shape = setup.take(plan((2, 3, (UNKNOWN_TOKEN_ID,))))
    assert shape == StepShape(1, 1, True, 32) and setup.memory.inputs(shape).sampled_rows_R.tolist() == [2]
    assert len(setup.changed) == 1
    setup.sample(shape, {2: 82})
    shape = setup.take(plan((2, 4, (82,)), (1, 4, (71,)), (3, 9, (33,)), row_starts=(start(3),)))
    assert setup.memory.inputs(shape).sampled_rows_R.tolist() == [2, 1, 3, 0][: shape.num_logit_rows]
    assert setup.memory.state_SW[3, TOKEN] == 33 and setup.memory.state_SW[3, POSITION] == 9


def test_a_smaller_batch_of_the_same_rows_needs_no_new_padding():
    setup = prefilled()
    shape = setup.take(plan((1, 3, (70,)), (2, 2, (80,)), (3, 5, (1,)), row_starts=(start(3),)))
    assert shape.num_rows == 4
    inputs = setup.memory.inputs(StepShape(4, 4, True))
    assert inputs.sampled_rows_R.tolist() == [1, 2, 3, 0]


def test_a_token_that_the_device_does_not_have_is_sent():
    setup = prefilled()
    setup.inputs.invalidate_rows([2])
    shape = setup.take(plan((1, 3, (UNKNOWN_TOKEN_ID,)), (2, 2, (81,))))
    assert shape.is_decode and setup.memory.state_SW[2, TOKEN] == 81 and setup.memory.state_SW[2, POSITION] == 2
    assert setup.memory.state_SW[1, TOKEN] == 70


def test_a_token_unknown_to_host_and_device_is_a_bug():
    setup = prefilled()
    setup.inputs.invalidate_rows([2])
    with pytest.raises(AssertionError, match="on the device only"):
        setup.take(plan((1, 3, (70,)), (2, 2, (UNKNOWN_TOKEN_ID,))))


def test_unknown_tokens_beside_a_prompt_are_filled_in_by_the_device():
    setup = prefilled()
    shape = setup.take(plan((1, 3, (UNKNOWN_TOKEN_ID,)), (2, 2, (80,)), (4, 0, (5, 6)), row_starts=(start(4),)))
    inputs = setup.memory.inputs(shape)
    assert not shape.is_decode and inputs.ids_T[:4].tolist() == [-1, 80, 5, 6]
    setup.sample(shape, {1: 71, 2: 81, 4: 41})
    shape = setup.take(plan((1, 4, (UNKNOWN_TOKEN_ID,)), (2, 3, (UNKNOWN_TOKEN_ID,)), (4, 2, (UNKNOWN_TOKEN_ID,))))
    assert shape.is_decode and not set(setup.changed) & set(range(SEQS * setup.memory.width))


def test_the_next_token_is_sent_after_a_draft():
    """Of two samples of one row, only the host knows which are accepted."""
    setup = prefilled()
    draft = StepPlan(1, Chunks.of([Chunk(1, 11, 3, (70, 71))]), (0, 1), (SampleRow(1, 11), SampleRow(1, 11)))
    shape = setup.take(draft)
    assert shape == StepShape(40, 8, False, FEW) and setup.memory.inputs(shape).sampled_rows_R.tolist() == [
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    shape = setup.take(plan((1, 4, (99,))))
    assert shape.is_decode and setup.memory.state_SW[1, TOKEN] == 99 and setup.memory.state_SW[1, POSITION] == 4


def test_many_choices_of_a_short_prompt_sample_from_one_row():
    """With more samples than tokens the shape is large enough for both."""
    setup = InputsSetup(max_logit_rows=40)
    sampled = tuple(SampleRow(row, 10 + row) for row in range(1, SEQS + 1)) * 3
    starts = tuple(start(row) for row in range(1, SEQS + 1))
    shape = setup.take(
        StepPlan(1, Chunks.of([Chunk(1, 11, 0, (5, 6))]), (1,) * len(sampled), sampled, row_starts=starts)
    )
    inputs = setup.memory.inputs(shape)
    assert shape.num_logit_rows >= len(sampled) == 18
    assert inputs.sampled_rows_R[: len(sampled)].tolist() == [row for row, _ in sampled]
    assert inputs.positions_T[:3].tolist() == [0, 1, -1]


def test_inputs_of_a_step_that_was_not_sent_are_sent_again():
    setup = prefilled()
    setup.inputs.stage(plan((1, 3, (70,)), (2, 2, (80,))))
    shape = setup.take(plan((1, 3, (70,)), (2, 2, (80,)), row_starts=(start(1), start(2))))
    assert setup.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_overwritten_inputs_are_sent_again():
    setup = prefilled()
    shape = setup.take(plan((1, 3, (70,)), (2, 2, (80,))))
    setup.sample(shape, {1: 71, 2: 81})
    setup.memory.pad()
    setup.inputs.invalidate_inputs()
    shape = setup.take(plan((1, 4, (UNKNOWN_TOKEN_ID,)), (2, 3, (UNKNOWN_TOKEN_ID,))))
    assert setup.memory.inputs(shape).sampled_rows_R.tolist() == [1, 2]


def test_padding_covers_all_inputs_and_no_state_row():
    setup = prefilled()
    state = setup.memory.state_SW.clone()
    setup.memory.pad()
    inputs = setup.memory.inputs(StepShape(40, 8, False, FEW))
    assert (inputs.positions_T == -1).all() and not inputs.sampled_rows_R.any() and not inputs.paged.work.any()
    assert torch.equal(setup.memory.state_SW, state) and TABLE > POSITION
