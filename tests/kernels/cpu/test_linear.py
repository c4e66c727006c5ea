"""The native product compared with a float64 product of its panels, for every instruction set of this machine.

Bounds: a sum of k float32 products has, in any order, an error of at most k times 2**-24 of the sum of their absolute
values; bytes are summed exactly. The result is rounded once more: 2**-24, or 2**-8 if it is stored as bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.packing import PackedLinear, pack
from app.kernels.cpu.records import Epilogue, Type
from app.kernels.ops import LinearWeight
from tests.kernels.cpu.linear import Activations, make_activations, make_weight, multiply

POISON = 7.0
SHAPES = [(1, 1), (31, 3), (33, 37), (64, 96), (100, 130), (160, 576)]
NUM_ROWS = [1, 2, 3, 5, 12, 25]
HALVES = [(1, 5), (16, 64), (50, 130)]


@pytest.fixture(params=supported_sets(), scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    loaded = load_library(request.param)
    if loaded is None:
        pytest.skip("no compiler found")
    return loaded


@pytest.fixture(params=list(Type), ids=lambda type: type.name)
def type(request: pytest.FixtureRequest) -> Type:
    return request.param


def poisoned(num_rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output with one more row and some more columns than needed."""
    return torch.full((num_rows + 1, width + 40), POISON, dtype=dtype)


def results(out: Tensor, num_rows: int, width: int) -> Tensor:
    """The rows and columns that a product must write; check that it wrote no others."""
    assert (out[num_rows:] == POISON).all()
    assert (out[:, width:] == POISON).all()
    return out[:num_rows, :width].double()


def expected_sums(packed: PackedLinear, weight: LinearWeight, activations: Activations) -> tuple[Tensor, Tensor]:
    """The product in float64, and the error that float32 may have."""
    matrix = packed.unpacked().double()
    sums = activations.values @ matrix.T
    size = activations.values.abs() @ matrix.abs().T
    if weight.bias is not None:
        sums += weight.bias.double()
        size += weight.bias.double().abs()
    return sums, size * (packed.k + 8) * 2**-24


def assert_within(got: Tensor, expected: Tensor, bound: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Check that `got` equals the leading rows of `expected` rounded to `dtype`."""
    expected, bound = expected[: len(got)], bound[: len(got)]
    excess = (got - expected).abs() - bound - expected.abs() * (2**-8 if dtype == torch.bfloat16 else 2**-23)
    assert not got.isnan().any()
    assert (excess <= 0).all(), f"off by {excess.max()} more than allowed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_products_of_any_shape_are_correct_and_write_nothing_else(
    library: NativeLibrary, type: Type, has_bias: bool, dtype: torch.dtype
):
    for n, k in SHAPES:
        weight = make_weight(n, k, has_bias=has_bias)
        packed = pack(weight, type)
        activations = make_activations(type, NUM_ROWS[-1], k)
        expected = expected_sums(packed, weight, activations)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, n, dtype)
            multiply(library, packed, activations, out, num_rows=num_rows, num_threads=1 + num_rows % 2)
            assert_within(results(out, num_rows, n), *expected, dtype)


def test_small_integers_are_multiplied_exactly(library: NativeLibrary):
    """Without rounding, every error of the layout is detected."""
    for type in (Type.FLOAT32, Type.FLOAT16, Type.BFLOAT16):
        for n, k in SHAPES:
            matrix = (torch.arange(n * k).view(n, k) % 13 - 6).float()
            packed = pack(LinearWeight(matrix), type)
            activations = make_activations(type, 5, k)
            integers = torch.arange(5 * k).view(5, k) % 7 - 3
            activations.rows[:, :k] = integers
            out = poisoned(5, n)
            multiply(library, packed, activations, out)
            assert torch.equal(results(out, 5, n), integers.double() @ matrix.double().T)


def test_accumulating_adds_to_the_output(library: NativeLibrary, type: Type):
    for n, k in SHAPES:
        weight = make_weight(n, k, has_bias=True)
        packed = pack(weight, type)
        activations = make_activations(type, NUM_ROWS[-1], k)
        sums, bound = expected_sums(packed, weight, activations)
        before = torch.randn(NUM_ROWS[-1], n)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, n)
            out[:num_rows, :n] = before[:num_rows]
            multiply(library, packed, activations, out, num_rows=num_rows, epilogue=Epilogue.ACCUMULATE)
            assert_within(results(out, num_rows, n), before.double() + sums, bound)


@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.ACCUMULATE], ids=lambda epilogue: epilogue.name)
def test_interleaved_panels_store_gates_first_and_then_ups(library: NativeLibrary, type: Type, epilogue: Epilogue):
    for half, k in HALVES:
        weight = make_weight(2 * half, k, has_bias=True)
        packed = pack(weight, type, interleaved=True)
        activations = make_activations(type, NUM_ROWS[-1], k)
        expected = expected_sums(packed, weight, activations)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, 2 * half)
            out[:num_rows, : 2 * half] = 0
            multiply(library, packed, activations, out, num_rows=num_rows, epilogue=epilogue)
            assert_within(results(out, num_rows, 2 * half), *expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_gated_products_are_silu_of_the_gate_times_up(
    library: NativeLibrary, type: Type, has_bias: bool, dtype: torch.dtype
):
    for half, k in HALVES:
        weight = make_weight(2 * half, k, has_bias=has_bias)
        packed = pack(weight, type, interleaved=True)
        activations = make_activations(type, NUM_ROWS[-1], k)
        sums, bounds = expected_sums(packed, weight, activations)
        (gate, up), (gate_bound, up_bound) = sums.split(half, 1), bounds.split(half, 1)
        expected = torch.nn.functional.silu(gate) * up
        # The slope of silu is at most 1.1; the error of its exponential is 1e-6.
        bound = 1.1 * gate_bound * (up.abs() + up_bound) + gate.abs() * (up_bound + 1e-6 * up.abs())
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, half, dtype)
            multiply(library, packed, activations, out, num_rows=num_rows, epilogue=Epilogue.GATED)
            assert_within(results(out, num_rows, half), expected, bound, dtype)


# With AMX the longer rows are split into blocks.
@pytest.mark.parametrize(
    ("k", "batch_sizes"),
    [(150, (*range(1, 25), 31, 32, 33, 48, 63, 64, 100)), (704, (16, 17, 40, 64, 70, 129, 260, 400))],
)
@pytest.mark.parametrize("epilogue", list(Epilogue), ids=lambda epilogue: epilogue.name)
def test_a_row_has_the_same_bits_in_any_batch(
    library: NativeLibrary, type: Type, epilogue: Epilogue, k: int, batch_sizes: Sequence[int]
):
    n, max_rows = 200, max(batch_sizes)
    packed = pack(make_weight(n, k, has_bias=True), type, interleaved=epilogue is Epilogue.GATED)
    activations = make_activations(type, max_rows, k)
    width = n // 2 if epilogue is Epilogue.GATED else n
    alone = torch.zeros(max_rows, width)
    for row in range(max_rows):
        multiply(library, packed, activations.starting_at(row), alone[row:], num_rows=1, epilogue=epilogue)
    for num_rows in batch_sizes:
        for num_threads in (1, 2) if num_rows % 3 == 1 or num_rows > 64 else (1,):
            out = torch.zeros(num_rows, width)
            multiply(library, packed, activations, out, num_rows=num_rows, num_threads=num_threads, epilogue=epilogue)
            assert torch.equal(out, alone[:num_rows]), f"{num_rows} rows, {num_threads} threads"


# With 573 and 575 columns the last registers of AMX are partly padding.
@pytest.mark.parametrize(("num_rows", "k"), [(40, 1088), (150, 573), (300, 575), (521, 1088)])
def test_many_rows_of_long_columns_are_correct(library: NativeLibrary, type: Type, num_rows: int, k: int):
    weight = make_weight(70, k, has_bias=True)
    packed = pack(weight, type)
    activations = make_activations(type, num_rows, k)
    out = poisoned(num_rows, 70)
    multiply(library, packed, activations, out, num_threads=2)
    assert_within(results(out, num_rows, 70), *expected_sums(packed, weight, activations))


def test_a_product_of_no_rows_writes_nothing(library: NativeLibrary, type: Type):
    packed = pack(make_weight(40, 20), type)
    out = poisoned(3, 40)
    multiply(library, packed, make_activations(type, 3, 20), out, num_rows=0)
    assert (out == POISON).all()


def test_more_threads_than_panels_share_the_rows(library: NativeLibrary, type: Type):
    weight = make_weight(20, 70)
    packed = pack(weight, type)
    activations = make_activations(type, 30, 70)
    out = poisoned(30, 20)
    multiply(library, packed, activations, out, num_threads=5)
    assert_within(results(out, 30, 20), *expected_sums(packed, weight, activations))


def test_groups_of_all_sizes_are_multiplied(library: NativeLibrary):
    for group, k in ((8, 20), (16, 64), (64, 100), (128, 576)):
        weight = make_weight(40, k)
        packed = pack(weight, Type.INT4, group=group)
        activations = make_activations(Type.INT4, 13, k)
        out = poisoned(13, 40)
        multiply(library, packed, activations, out)
        assert_within(results(out, 13, 40), *expected_sums(packed, weight, activations))
