"""Programs that attention launches, and how many of them find nothing to do, in the steps of the benchmark's loads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod

import pytest
import torch

from app.engine.execute.gpu import memory
from app.engine.execute.gpu.inputs import DeviceInputs
from app.engine.execute.gpu.memory import Staging, StepMemory
from app.engine.execute.gpu.shapes import StepShape, StepShapes
from app.engine.schedule.step_plan import Chunk, Chunks, SampleRow, StepPlan
from app.kernels.ops import PagedBatch
from app.kernels.triton.attention import decode_attention, piece_attention, prefill_attention
from app.kernels.triton.attention.paged_attention import PagedAttention
from app.kernels.triton.attention.work import NUM_PIECES, NUM_TILES
from benchmarks.gpu.loads import load_256, uniform_load
from benchmarks.gpu.models import SHAPES
from tests.engine.execute.gpu.fake_device import FakeDevice

SEQS, TOKENS, CONTEXT, PROCESSORS = 256, 2048, 4096, 132
MOST_IDLE, MOST_IDLE_DETERMINISTIC = 0.05, 0.055
KERNELS = {
    "decode": (decode_attention, "_decode_kernel"),
    "pieces": (piece_attention, "_piece_kernel"),
    "tiles": (prefill_attention, "_prefill_kernel"),
}
MODELS = ("Qwen3-0.6B", "Llama-3.1-8B", "Llama-3.2-1B")
Sequences = list[tuple[int, int]]  # tokens computed before a step, and in it


class Recorder:
    """In the place of a kernel: keeps the grids of its launches."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Recorder:
        self.grids.append(grid)
        return self

    def __call__(self, *given: object, **named: object) -> None:
        pass


def scattered(changes_N2: torch.Tensor, num_changes: torch.Tensor, *, out: torch.Tensor) -> None:
    """Does what `scatter` does: the kernel would take most of the time in the interpreter."""
    changes_N2 = changes_N2[: int(num_changes[0])].long()
    out[changes_N2[:, 0]] = changes_N2[:, 1].int()


class Path:
    """A model's way from plans to launches of attention."""

    def __init__(self, model: str, monkeypatch: pytest.MonkeyPatch, *, deterministic: bool = False) -> None:
        self.model, self.recorders = SHAPES[model], {name: Recorder() for name in KERNELS}
        for name, (module, kernel) in KERNELS.items():
            monkeypatch.setattr(module, kernel, self.recorders[name])
        monkeypatch.setattr(memory, "scatter", scattered)
        heads, kv_heads, width = self.model.num_heads, self.model.num_kv_heads, self.model.head_dim
        self.attention = PagedAttention(
            torch.device("meta"), num_heads=heads, num_kv_heads=kv_heads, head_dim=width, dtype=torch.bfloat16,
            cache_dtype=torch.bfloat16, max_rows=SEQS, max_tokens=TOKENS, max_context=CONTEXT,
            num_processors=PROCESSORS, capability=(9, 0), is_deterministic=deterministic,
        )  # fmt: skip
        device, work = FakeDevice(), self.attention.mixed_work
        self.device = device
        self.shapes = StepShapes(SEQS, TOKENS, SEQS, CONTEXT, self.attention.grids)
        self.memory = StepMemory(device.torch_device, SEQS, 1, TOKENS, SEQS, work.sizes.length, 16)
        self.staging = Staging(device, self.memory.buffer)
        self.inputs = DeviceInputs(self.memory, self.shapes, work, self.staging)

    def launched(self, sequences: Sequences) -> tuple[int, int, StepShape]:
        """Stage a step and attend: the programs that one layer launches, those with something to do, and the shape."""
        chunks = Chunks.of(Chunk(row, row, start, (5,) * new) for row, (start, new) in enumerate(sequences, 1))
        ends = [end - 1 for end in accumulate(chunks.counts)]
        sampled = tuple(SampleRow(row, row) for row in chunks.rows)
        shape = self.inputs.stage(StepPlan(step=1, chunks=chunks, logit_rows=tuple(ends), sampled=sampled))
        assert shape is not None and shape in self.shapes.all()
        self.staging.flush()
        self.device.synchronize()
        batch = self.memory.inputs(shape).paged
        self.attend(batch)
        launched = sum(prod(grid) for grid in self.grids().values())
        return launched, self.model.num_kv_heads * self.num_working(sequences, batch), shape

    def attend(self, batch: PagedBatch) -> None:
        q = torch.empty(
            batch.num_tokens, self.model.num_heads, self.model.head_dim, dtype=torch.bfloat16, device="meta"
        )
        cache = torch.empty(9, 16, self.model.num_kv_heads, self.model.head_dim, dtype=torch.bfloat16, device="meta")
        for recorder in self.recorders.values():
            recorder.grids.clear()
        self.attention.attend(q, cache, cache, batch, 0.1, None, out=q)

    def grids(self) -> dict[str, tuple[int, ...]]:
        """The launches of a step: at most one of each kernel."""
        assert all(len(recorder.grids) <= 1 for recorder in self.recorders.values())
        return {name: recorder.grids[0] for name, recorder in self.recorders.items() if recorder.grids}

    def num_working(self, sequences: Sequences, batch: PagedBatch) -> int:
        """Programs of each key head that have something to do."""
        grids = self.grids()
        if batch.work is None:
            assert list(grids) == ["decode"] and grids["decode"][0] == batch.num_splits
            least = self.attention.grids.least_split(batch.num_tokens, batch.num_splits)
            size = DETERMINISTIC if self.attention.grids.split_tokens else least
            return sum(min(batch.num_splits, -(-(start + 1) // size)) for start, _ in sequences)
        num_pieces, num_tiles = int(batch.work[NUM_PIECES]), int(batch.work[NUM_TILES])
        return min(grids["pieces"][1], num_pieces) + min(grids["tiles"][0], num_tiles)


DETERMINISTIC = 512


def mixed_steps(lengths: list[int]) -> Iterator[Sequences]:
    """Steps of TOKENS tokens until all prompts are computed: a token for each sequence that decodes, then prompts."""
    done, decoded = [0] * len(lengths), [0] * len(lengths)
    while any(have < length for have, length in zip(done, lengths, strict=True)):
        step, room = [], TOKENS
        for number, length in enumerate(lengths):
            if done[number] == length and room:
                step.append((length + decoded[number], 1))
                decoded[number] += 1
                room -= 1
        for number, length in enumerate(lengths):
            new = min(room, length - done[number])
            if new:
                step.append((done[number], new))
                done[number] += new
                room -= new
        yield step


def lengths_of(load: str) -> list[int]:
    return [len(prompt) for prompt in (load_256() if load == "256 requests" else uniform_load(256, 1024, 1)).prompts]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_in_a_steady_decode_of_256_no_program_is_without_work(model, deterministic, monkeypatch):
    path = Path(model, monkeypatch, deterministic=deterministic)
    for context in ([1024] * 256, [600 + 5 * row for row in range(256)], [n + 300 for n in lengths_of("256 requests")]):
        launched, working, shape = path.launched([(tokens, 1) for tokens in context])
        assert (launched, working) == (2048, 2048) and shape == StepShape(256, 256, True, 1)


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("load", ["256 requests", "256 x 1024"])
def test_in_the_mixed_steps_of_a_load_few_programs_are_without_work(model, load, deterministic, monkeypatch):
    path, launched, working, worst = Path(model, monkeypatch, deterministic=deterministic), 0, 0, 0.0
    for number, step in enumerate(mixed_steps(lengths_of(load))):
        if number % 3 == 1:
            step_launched, step_working, shape = path.launched(step)
            assert not shape.is_decode
            launched, working = launched + step_launched, working + step_working
            worst = max(worst, 1 - step_working / step_launched)
    print(f"{model}, {load}: {launched} programs, {1 - working / launched:.1%} idle, at worst {worst:.1%} of a step")
    assert 1 - working / launched <= (MOST_IDLE_DETERMINISTIC if deterministic else MOST_IDLE)


def test_at_the_mean_of_the_256_requests_only_padding_is_idle(monkeypatch):
    launched, working, shape = Path("Qwen3-0.6B", monkeypatch).launched([(820, 1)] * 131)
    assert shape.num_rows == 160 and (launched, working) == (160 * 8, 131 * 8)


def test_few_new_tokens_behind_a_long_prefix_keep_the_gpu_busy(monkeypatch):
    """A turn of a conversation, and a decoding row of a long context beside a prompt."""
    path = Path("Llama-3.1-8B", monkeypatch)
    for step, name in (([(CONTEXT * 8, 16)], "pieces"), ([(CONTEXT * 25, 1), (0, 1000)], "pieces")):
        path.launched(step)
        grid = path.grids()[name]
        num_pieces = int(path.memory.inputs(path.shapes.mixed(64, 1)).paged.work[NUM_PIECES])
        assert min(grid[1], num_pieces) * grid[0] > 2 * PROCESSORS


def test_a_long_context_in_a_full_batch_is_split_and_short_ones_are_not(monkeypatch):
    path = Path("Llama-3.1-8B", monkeypatch)
    launched, working, shape = path.launched([(3000, 1), *[(1024, 1)] * 255])
    assert shape.num_splits == 4 and working == 8 * (255 + 2) and launched == 8 * 256 * 4
