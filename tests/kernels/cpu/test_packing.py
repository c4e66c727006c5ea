"""The layout of packed weights, and the error of quantization."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.kernels.cpu import packing
from app.kernels.cpu.packing import PackedLinear, allocate_aligned, pack
from app.kernels.cpu.records import Type
from app.kernels.ops import LinearWeight

DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16, Type.BFLOAT16: torch.bfloat16}
SHAPES = [(1, 1), (5, 2), (31, 3), (32, 64), (33, 37), (100, 130)]


@pytest.fixture(params=list(Type), ids=lambda type: type.name)
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


def test_bytes_are_multiples_of_the_scale_of_their_row():
    matrix = noise(40, 10)
    packed = pack(LinearWeight(matrix), Type.INT8)
    assert packed.scales is not None and packed.sums is not None
    stored = packed.panels.view(torch.int8).view(2, 3, 32, 4)  # 10 columns take three lanes
    for row in range(40):
        values = stored[row // 32, :, row % 32].flatten()
        scale = matrix[row].abs().max() / 127
        assert torch.equal(values[:10], (matrix[row] / scale).round().to(torch.int8))
        assert (values[10:] == 0).all()
        assert packed.scales[row] == scale
        assert packed.sums[row] == 128 * values.int().sum()


def test_int4_lanes_are_multiples_of_chained_group_scales():
    matrix = noise(40, 50)
    packed = pack(LinearWeight(matrix), Type.INT4, group=16)
    assert packed.scales is not None
    unpacked = packed.unpacked()
    for row in (0, 31, 32, 39):
        scale = packed.scales[row].double()
        for group in reversed(range(4)):
            block = packed.panels[row // 32].view(4, 64 + 2 * 32 * 4)[group]
            lanes = block[64:].view(torch.int32).view(2, 32)[:, row % 32].tolist()
            for column in range(group * 16, min(50, group * 16 + 16)):
                lane, index = divmod(column % 16, 8)
                nibble = lanes[lane] >> (4 * (index // 2) + 16 * (index % 2)) & 15
                value = nibble - 16 if nibble > 7 else nibble
                assert unpacked[row, column].item() == pytest.approx(value * scale.item(), rel=1e-6)
            scale = scale * block[:64].view(torch.bfloat16)[row % 32].double()


@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
def test_the_quantization_error_is_small(interleaved: bool):
    for n, k in ((64, 576), (70, 100), (96, 4864)):
        matrix = noise(n, k)
        int8 = pack(LinearWeight(matrix), Type.INT8, interleaved=interleaved)
        int4 = pack(LinearWeight(matrix), Type.INT4, interleaved=interleaved)
        assert squared_error(int8, matrix) < 1e-4
        # The best scale of a group: without a search, at the largest weight / 7, this is 0.0094.
        assert squared_error(int4, matrix) < 0.0072


def test_groups_much_smaller_than_their_neighbours_stay_small():
    matrix = noise(32, 128)
    matrix[:, 32:64] *= 1e-12
    matrix[:, 64:96] *= 1e3
    unpacked = pack(LinearWeight(matrix), Type.INT4).unpacked()
    assert squared_error(pack(LinearWeight(matrix), Type.INT4), matrix) < 0.0072
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
        for type in Type
    }  # fmt: skip
    assert per_weight[Type.FLOAT32] == 4
    assert per_weight[Type.FLOAT16] == per_weight[Type.BFLOAT16] == 2
    assert 1 < per_weight[Type.INT8] < 1.01
    assert 0.5625 < per_weight[Type.INT4] < 0.57


def test_the_record_describes_the_tensors(type: Type):
    packed = pack(LinearWeight(noise(64, 96), noise(1, 64)[0]), type, interleaved=True)
    fields = packed.fields
    assert (fields.n, fields.k, fields.type) == (64, 96, type)
    assert fields.is_interleaved == 1
    assert fields.group == (32 if type is Type.INT4 else 0)
    assert fields.panels == packed.panels.data_ptr()
    for address, tensor in ((fields.scales, packed.scales), (fields.sums, packed.sums), (fields.bias, packed.bias)):
        assert address == (None if tensor is None else tensor.data_ptr())
