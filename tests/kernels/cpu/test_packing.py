"""The layout of packed weights, and the error of quantization."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from app.checkpoint.tensor_types import TENSOR_TYPES, TensorType
from app.kernels.cpu import packing
from app.kernels.cpu.groups import KINDS, write_groups
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.packing import STORED_TYPES, PackedLinear, allocate_aligned, pack, pack_stored
from app.kernels.cpu.records import Type
from app.kernels.ops import LinearWeight, StoredWeight
from app.models.gguf.gguf_blocks import decode
from app.models.mapped_file import NUMBERS
from tests.gguf_blocks import GROUPED, random_blocks
from tests.kernels.cpu.split_blocks import split_blocks

DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16, Type.BFLOAT16: torch.bfloat16}
SHAPES = [(1, 1), (5, 2), (31, 3), (32, 64), (33, 37), (100, 130)]


@pytest.fixture(params=[*DTYPES, Type.INT8, Type.INT4], ids=lambda type: type.name)
def type(request: pytest.FixtureRequest) -> Type:
    return request.param


def noise(n: int, k: int) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))


def squared_error(packed: PackedLinear, matrix: Tensor) -> float:
    """The squared error of the packed matrix, relative to its squares."""
    return ((packed.unpacked() - matrix).square().sum() / matrix.square().sum()).item()


@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
@pytest.mark.parametrize("type", DTYPES, ids=lambda type: type.name)
def test_floats_are_stored_exactly(type: Type, interleaved: bool):
    for n, k in SHAPES:
        matrix = noise(2 * n if interleaved else n, k).to(DTYPES[type])
        assert torch.equal(pack(LinearWeight(matrix), type, interleaved=interleaved).unpacked(), matrix.float())


@pytest.mark.parametrize("type", DTYPES, ids=lambda type: type.name)
def test_floats_are_stored_at_the_offsets_of_the_layout(type: Type):
    n, k = 70, 5
    matrix = noise(n, k).to(DTYPES[type])
    columns = 2 if type is Type.BFLOAT16 else 1
    stored = pack(LinearWeight(matrix), type).panels.view(DTYPES[type]).flatten()
    steps = -(-k // columns)
    for row in range(96):
        for column in range(steps * columns):
            step = row // 32 * steps + column // columns
            expected = matrix[row, column] if row < n and column < k else 0
            assert stored[(step * 32 + row % 32) * columns + column % columns] == expected


def test_bytes_are_multiples_of_the_scale_of_their_group():
    matrix = noise(40, 70)
    groups = pack(LinearWeight(matrix), Type.INT8).panels.view(2, 3, 64 + 1024)
    for row in range(40):
        for group in range(3):
            block, columns = groups[row // 32, group], slice(32 * group, min(70, 32 * group + 32))
            scale = block[:64].view(torch.float16)[row % 32]
            assert scale == (matrix[row, columns].abs().max() / 127).half()
            stored = block[64:].view(8, 32, 4)[:, row % 32].flatten()[: columns.stop - columns.start].int() - 128
            assert torch.equal(stored, (matrix[row, columns] / scale.float()).round().clamp(-127, 127).int())


def test_int4_weights_are_multiples_of_their_scale_above_their_minimum():
    matrix = noise(40, 50)
    packed = pack(LinearWeight(matrix), Type.INT4)
    unpacked = packed.unpacked()
    for row in (0, 31, 32, 39):
        for group in range(2):
            block = packed.panels[row // 32].view(2, 128 + 4 * 32 * 4)[group]
            scale = block[:64].view(torch.float16)[row % 32].float().item()
            minimum = block[64:128].view(torch.float16)[row % 32].float().item()
            lanes = block[128:].view(torch.int32).view(4, 32)[:, row % 32].tolist()
            for column in range(group * 32, min(50, group * 32 + 32)):
                lane, index = divmod(column % 32, 8)
                nibble = lanes[lane] >> (8 * (index % 4) + 4 * (index // 4)) & 15
                assert unpacked[row, column].item() == pytest.approx(scale * nibble + minimum, rel=1e-6, abs=1e-6)


def test_weights_on_the_grid_of_a_file_are_stored_exactly():
    """Scales and minimums that float16 holds come back as they were, so no quality is lost a second time."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.rand(64, 3, 1, generator=generator).half().float()
    bytes = torch.randint(-127, 128, (64, 3, 32), generator=generator)
    bytes[:, :, 0] = 127
    q8_0 = (bytes * scales).flatten(1)
    assert torch.equal(pack(LinearWeight(q8_0), Type.INT8).unpacked(), q8_0)
    nibbles = torch.randint(16, (64, 3, 32), generator=generator)
    nibbles[:, :, 0], nibbles[:, :, 1] = 0, 15
    q4_1 = (nibbles * scales - torch.rand(64, 3, 1, generator=generator).half().float()).flatten(1)
    assert (pack(LinearWeight(q4_1), Type.INT4).unpacked() - q4_1).abs().max() < 0.01


@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
def test_the_quantization_error_is_small(interleaved: bool):
    for n, k in ((64, 576), (70, 100), (96, 4864)):
        matrix = noise(n, k)
        int8 = pack(LinearWeight(matrix), Type.INT8, interleaved=interleaved)
        int4 = pack(LinearWeight(matrix), Type.INT4, interleaved=interleaved)
        assert squared_error(int8, matrix) < 4e-5
        # The best grid of a group: without a search, from its least to its largest weight, this is 0.0066.
        assert squared_error(int4, matrix) < 0.0057


def test_groups_much_smaller_than_their_neighbours_stay_small():
    matrix = noise(32, 128)
    matrix[:, 32:64] *= 1e-12
    matrix[:, 64:96] *= 1e3
    unpacked = pack(LinearWeight(matrix), Type.INT4).unpacked()
    assert squared_error(pack(LinearWeight(matrix), Type.INT4), matrix) < 0.0057
    assert (unpacked[:, 32:64].abs() < 1).all()


def test_zeros_stay_zeros(type: Type):
    matrix = noise(40, 70)
    matrix[3] = 0
    matrix[5, 32:64] = 0
    matrix[7] = 1e-38
    unpacked = pack(LinearWeight(matrix), type).unpacked()
    assert not unpacked.isnan().any()
    assert (unpacked[3] == 0).all()
    assert (unpacked[5, 32:64] == 0).all()
    assert (unpacked[7].abs() <= 1.1e-38).all()


def test_padding_rows_and_columns_are_zeros(type: Type):
    packed = pack(LinearWeight(torch.ones(33, 9)), type)
    padded = packed._dequantized(0, 2).flatten(0, 1)
    if type in (Type.INT8, Type.INT4):  # the columns that a group lacks are multiplied with zeros
        padded = padded[:, :9]
    assert padded[:33, :9].count_nonzero() == 33 * 9
    assert padded.count_nonzero() == 33 * 9


def test_interleaved_panels_have_sixteen_rows_of_each_half():
    matrix = torch.arange(40.0)[:, None]  # halves of 20 rows
    packed = pack(LinearWeight(matrix, torch.arange(40.0)), Type.FLOAT32, interleaved=True)
    gates, ups = list(range(20)), list(range(20, 40))
    padding = [0] * 12
    order = gates[:16] + ups[:16] + gates[16:] + padding + ups[16:] + padding
    assert packed.panels.view(torch.float32).flatten().tolist() == order
    assert packed.bias is not None
    assert packed.bias.tolist() == order


def test_biases_are_padded_to_full_panels():
    packed = pack(LinearWeight(noise(33, 4), noise(1, 33)[0].bfloat16()), Type.BFLOAT16)
    assert packed.bias is not None
    assert packed.bias.dtype == torch.float32
    assert torch.equal(packed.bias[:33], noise(1, 33)[0].bfloat16().float())
    assert packed.bias[33:].tolist() == [0] * 31


def test_packing_in_chunks_gives_the_same_panels(type: Type, monkeypatch: pytest.MonkeyPatch):
    weight = LinearWeight(noise(300, 70), noise(1, 300)[0])
    for interleaved in (False, True):
        at_once = pack(weight, type, interleaved=interleaved)
        with monkeypatch.context() as patch:
            patch.setattr(packing, "CHUNK", 2 * 32 * 70)
            in_chunks = pack(weight, type, interleaved=interleaved)
            assert torch.equal(in_chunks.unpacked(), at_once.unpacked())
        assert torch.equal(in_chunks.panels, at_once.panels)


def test_panels_are_written_to_one_given_allocation(type: Type):
    allocations = []

    def allocate(num_bytes: int) -> Tensor:
        allocations.append(allocate_aligned(num_bytes))
        return allocations[-1]

    packed = pack(LinearWeight(noise(40, 70)), type, allocate=allocate)
    assert [allocation.data_ptr() for allocation in allocations] == [packed.panels.data_ptr()]
    assert allocations[0].nbytes == packed.panels.nbytes


def test_memory_is_aligned_to_cache_lines():
    for num_bytes in (64, 640, 100_000):
        memory = allocate_aligned(num_bytes)
        assert memory.data_ptr() % 64 == 0
        assert memory.nbytes == num_bytes


def test_num_bytes_counts_the_stored_tensors():
    per_weight = {
        type: pack(LinearWeight(noise(64, 1024)), type).num_bytes / (64 * 1024)
        for type in (*DTYPES, Type.INT8, Type.INT4)
    }  # fmt: skip
    assert per_weight[Type.FLOAT32] == 4
    assert per_weight[Type.FLOAT16] == per_weight[Type.BFLOAT16] == 2
    assert per_weight[Type.INT8] == 34 / 32
    assert per_weight[Type.INT4] == 20 / 32


def test_the_record_describes_the_tensors(type: Type):
    packed = pack(LinearWeight(noise(64, 96), noise(1, 64)[0]), type, interleaved=True)
    fields = packed.fields
    assert (fields.n, fields.k, fields.type) == (64, 96, type)
    assert fields.is_interleaved == 1
    assert fields.panels == packed.panels.data_ptr()
    assert packed.bias is not None and fields.bias == packed.bias.data_ptr()


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
def test_blocks_of_files_are_packed_as_they_are(kind: TensorType, interleaved: bool, library: NativeLibrary):
    """The integers and factors of the panels give the weights of the blocks, but for the order of roundings."""
    for n, k in ((64, 256), (70, 768)):
        bias = torch.randn(n)
        blocks = random_blocks(kind, n, k)
        weight = StoredWeight.of(kind, blocks, bias)
        packed = pack_stored(weight, library, interleaved=interleaved, num_planes=2)
        wanted = decode(kind.name, blocks)
        assert packed.type is STORED_TYPES[kind.name] and packed.num_planes == 2
        assert (packed.unpacked() - wanted).abs().max() <= 2**-22 * wanted.abs().max()
        assert packed.bias is not None and packed.is_interleaved == interleaved
        padding = packed.panels.nbytes // len(packed.panels) * (len(packed.panels) - n / 32)
        assert packed.panels.nbytes == pytest.approx(kind.kept_bytes(n * k) + padding)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
def test_numbers_of_files_are_packed_as_torch_operations_do(
    dtype: torch.dtype, interleaved: bool, library: NativeLibrary
):
    """Also if columns do not fill a lane, or a line of memory, and rows no panel; rows may begin anywhere."""
    kind = next(kind for kind in TENSOR_TYPES.values() if NUMBERS.get(kind.name) is dtype)
    for n, k in ((64, 64), (70, 33), (2, 1), (44, 129)):
        weight = torch.randn(n, k).to(dtype)
        stored = (
            torch.empty(n * k * dtype.itemsize + 1, dtype=torch.uint8)[1:].view(n, -1).copy_(weight.view(torch.uint8))
        )
        bias = torch.randn(n)
        found = pack_stored(StoredWeight.of(kind, stored, bias), library, interleaved=interleaved)
        wanted = pack(LinearWeight(weight, bias), STORED_TYPES[kind.name], interleaved=interleaved)
        assert torch.equal(found.panels, wanted.panels) and (found.n, found.k) == (n, k)
        assert found.bias is not None and wanted.bias is not None and torch.equal(found.bias, wanted.bias)


def test_rows_are_packed_in_the_order_of_their_addresses(library: NativeLibrary):
    kind, blocks = GROUPED[0], random_blocks(GROUPED[0], 64, 256)
    weight = StoredWeight.of(kind, blocks)
    order = torch.randperm(64)
    found = pack_stored(replace(weight, rows=weight.rows[order]), library)
    assert torch.equal(found.panels, pack_stored(StoredWeight.of(kind, blocks[order]), library).panels)


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_each_bit_of_packed_blocks_is_that_of_torch_operations(kind: TensorType, library: NativeLibrary):
    """Also of rows that the matrix lacks, which are blocks of zeros."""
    for n, interleaved in ((32, False), (70, False), (64, True), (44, True)):
        blocks = random_blocks(kind, n, 768)
        lanes = torch.zeros(-(-n // 32) * 32, blocks.shape[1], dtype=torch.uint8)
        if interleaved:
            panels = torch.zeros(-(-n // 32), 2, 16, blocks.shape[1], dtype=torch.uint8)
            for half in (0, 1):
                rows = panels[:, half].flatten(0, 1)
                rows[: n // 2] = blocks[half * n // 2 : (half + 1) * n // 2]
                panels[:, half] = rows.view(-1, 16, blocks.shape[1])
            lanes = panels.flatten(0, 2)
        else:
            lanes[:n] = blocks
        packed = pack_stored(StoredWeight.of(kind, blocks), library, interleaved=interleaved)
        expected = torch.zeros_like(packed.panels)
        groups = split_blocks(kind, lanes.view(len(packed.panels), 32, -1))
        write_groups(expected, KINDS[packed.type], groups)
        assert torch.equal(packed.panels, expected)


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_integers_of_blocks_are_stored_at_the_offsets_of_the_layout(kind: TensorType, library: NativeLibrary):
    """Each bit of a group's words is that of its column."""
    groups = split_blocks(kind, random_blocks(kind, 32, 256))
    type = STORED_TYPES[kind.name]
    panels = pack_stored(StoredWeight.of(kind, random_blocks(kind, 32, 256)), library).panels
    bits, count = KINDS[type].bits, KINDS[type].block_groups
    blocks = panels.view(8 // count, -1)
    halves = 64 * KINDS[type].num_halves
    for group in (0, 7):
        block = blocks[group // count][halves:].view(count, -1)[group % count]
        words = block[32 * KINDS[type].num_bytes :].view(torch.int32).view(bits, 32).tolist()
        for row in (0, 31):
            for column in range(32):
                places = PLACES[bits](column)
                found = sum((words[word][row] >> bit & 1) << power for power, (word, bit) in enumerate(places))
                assert found == groups.values[row, group, column]


def _low(column: int, word: int) -> list[tuple[int, int]]:
    """The places of four bits in words of which that is the first."""
    return [(word + column // 8, 8 * (column % 4) + 4 * (column // 4 % 2) + bit) for bit in range(4)]


# Where the bits of a column are, from the lowest: which word, and which bit of it.
PLACES = {
    8: lambda c: [(c // 4, 8 * (c % 4) + bit) for bit in range(8)],
    4: lambda c: _low(c, 0),
    5: lambda c: [*_low(c, 1), (0, 8 * (c % 4) + c // 4)],
    6: lambda c: [*_low(c, 1 + c // 16), *((c // 16 * 3, 8 * (c % 4) + 2 * (c % 16 // 4) + bit) for bit in (0, 1))],
}
