"""The native product compared with a float64 product of its panels, for every instruction set of this machine.

Bounds: a sum of k float32 products has, in any order, an error of at most k times 2**-24 of the sum of their absolute
values; bytes are summed exactly. The result is rounded once more: 2**-24, or 2**-8 if it is stored as bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from app.kernels.cpu import records
from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.groups import GROUP, KINDS, PANEL_WIDTH, Groups, write_groups
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.native_ops import QuantizedRows
from app.kernels.cpu.packing import PackedLinear, pack
from app.kernels.cpu.records import Activation, Code, Epilogue, Matrix, Type
from app.kernels.ops import LinearWeight
from tests.cases import grid, long
from tests.kernels.cpu.emulated_amx import EMULATED_AMX, load_emulated_amx
from tests.kernels.cpu.linear import (
    Activations,
    activations_of,
    columns_for,
    make_activations,
    make_packed,
    multiply,
)
from tests.kernels.cpu.sets import as_tested, load_set, sets_of_this_machine

POISON = 7.0
OUTPUT_TYPES = (torch.float32, torch.bfloat16)
SHAPES = [(1, 1), (31, 3), (33, 37), (64, 96), (100, 130), (160, 576)]
NUM_ROWS = [1, 2, 3, 5, 12, 25]
HALVES = [(1, 5), (16, 64), (50, 130)]
# Where AMX runs, its emulation finds nothing that AMX does not; to compile it takes a minute.
HAS_AMX = "amx" in supported_sets()
# The function, and the numbers of rows: what follows a product is the same for all of them.
ACTIVATIONS = {
    Activation.SILU: (functional.silu, NUM_ROWS),
    Activation.GELU: (partial(functional.gelu, approximate="tanh"), (1, 25)),
}
BIAS_AND_TYPE = grid(lambda has_bias, dtype: has_bias == (dtype is torch.bfloat16), (False, True), OUTPUT_TYPES)


def load(name: str) -> NativeLibrary | None:
    """Return the kernels of an instruction set, or of the emulated one; None if there are none here."""
    return load_emulated_amx() if name == EMULATED_AMX else load_set(name)


@pytest.fixture(params=[*sets_of_this_machine(), long(EMULATED_AMX) if HAS_AMX else EMULATED_AMX], scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    loaded = load(request.param)
    if loaded is None:
        pytest.skip("no compiler found, or this machine lacks the instructions")
    return loaded


@pytest.fixture(params=list(Type), ids=lambda type: type.name)
def type(request: pytest.FixtureRequest) -> Type:
    return request.param


@pytest.fixture(params=[1, 2], ids=["bytes", "words"])
def num_planes(request: pytest.FixtureRequest, type: Type) -> int:
    """How many bytes the activations have; only quantized weights ask for it."""
    if request.param == 2 and type not in KINDS:
        pytest.skip("activations are floats")
    return request.param


def shapes_for(type: Type, shapes: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Shapes with columns that the type can have."""
    return {(n, columns_for(type, k)) for n, k in shapes}


def poisoned(num_rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output with one more row and some more columns than needed."""
    return torch.full((num_rows + 1, width + 40), POISON, dtype=dtype)


def results(out: Tensor, num_rows: int, width: int) -> Tensor:
    """The rows and columns that a product must write; check that it wrote no others."""
    assert (out[num_rows:] == POISON).all()
    assert (out[:, width:] == POISON).all()
    return out[:num_rows, :width].double()


def expected_sums(packed: PackedLinear, bias: Tensor | None, activations: Activations) -> tuple[Tensor, Tensor]:
    """The product in float64, and the error that float32 may have."""
    matrix = packed.unpacked().double()
    sums = activations.values @ matrix.T
    size = activations.values.abs() @ magnitudes(packed.type, matrix).T
    if bias is not None:
        sums += bias.double()
        size += bias.double().abs()
    return sums, size * (packed.k + 8) * 2**-24


@cache
def product_of(
    type: Type, n: int, k: int, *, has_bias: bool, interleaved: bool = False, num_planes: int = 1
) -> tuple[PackedLinear, Activations, Tensor, Tensor]:
    """A matrix, rows, their product and the error that it may have; every library multiplies the same ones."""
    packed, bias = make_packed(type, n, k, has_bias=has_bias, interleaved=interleaved, num_planes=num_planes)
    activations = make_activations(type, NUM_ROWS[-1], k, num_planes)
    return packed, activations, *expected_sums(packed, bias, activations)


def magnitudes(type: Type, matrix: Tensor) -> Tensor:
    """How large the parts are that each weight is added up from: a multiple of the scale, and perhaps the minimum.

    Their sum is at most three times the largest weight of a group whose integers are spread over their range.
    """
    if type not in KINDS or not KINDS[type].has_minimums:
        return matrix.abs()
    columns = matrix.shape[1]
    groups = functional.pad(matrix, (0, -columns % GROUP)).unflatten(1, (-1, GROUP))
    return (3 * groups.abs().amax(2, keepdim=True)).expand_as(groups).flatten(1)[:, :columns]


def assert_within(got: Tensor, expected: Tensor, bound: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Check that `got` equals the leading rows of `expected` rounded to `dtype`."""
    expected, bound = expected[: len(got)], bound[: len(got)]
    excess = (got - expected).abs() - bound - expected.abs() * (2**-8 if dtype == torch.bfloat16 else 2**-23)
    assert not got.isnan().any()
    assert (excess <= 0).all(), f"off by {excess.max()} more than allowed"


@pytest.mark.parametrize(("has_bias", "dtype"), BIAS_AND_TYPE, ids=str)
def test_products_of_any_shape_are_correct_and_write_nothing_else(
    library: NativeLibrary, type: Type, num_planes: int, has_bias: bool, dtype: torch.dtype
):
    for n, k in shapes_for(type, SHAPES):
        packed, activations, *expected = product_of(type, n, k, has_bias=has_bias, num_planes=num_planes)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, n, dtype)
            multiply(library, packed, activations, out, num_rows=num_rows, num_threads=1 + num_rows % 2)
            assert_within(results(out, num_rows, n), *expected, dtype)


def make_extreme(type: Type, n: int, k: int, num_planes: int) -> PackedLinear:
    """A quantized matrix whose integers are the least or the greatest, all the same in its first two rows."""
    packed, _ = make_packed(type, n, k, num_planes=num_planes)
    kind, shape = KINDS[type], (len(packed.panels), PANEL_WIDTH)
    num_groups = -(-k // GROUP)
    greatest = torch.randint(2, (*shape, num_groups, GROUP), generator=torch.Generator().manual_seed(n))
    greatest[0, 0], greatest[0, 1] = 0, 1
    halves = torch.tensor([1.0, 0.0])[: kind.num_halves].half().expand(*shape, num_groups // kind.block_groups, -1)
    bytes = torch.ones(*shape, num_groups, kind.num_bytes, dtype=torch.uint8) if kind.num_bytes else None
    values = (greatest * (2**kind.bits - 1)).to(torch.uint8)
    write_groups(packed.panels, kind, Groups(values, halves, bytes))
    return packed


def test_the_largest_integers_are_multiplied_exactly(library: NativeLibrary, type: Type, num_planes: int):
    """No sum of products is larger than what instructions hold; the lower byte of two may be -128."""
    if type not in KINDS:
        pytest.skip("no integers")
    n, k, num_rows = 70, columns_for(type, 96), NUM_ROWS[-1]
    packed = make_extreme(type, n, k, num_planes)
    largest = 127 if num_planes == 1 else 127 * 257
    extremes = torch.tensor([largest, -largest, largest if num_planes == 1 else 127 * 256 - 128])
    values = extremes[torch.randint(3, (num_rows, k), generator=torch.Generator().manual_seed(k))].float()
    values[0], values[1], values[2, 1::2] = largest, -largest, -largest
    values[:, ::GROUP] = largest  # so that the scale is 1
    activations = activations_of(type, values, num_planes)
    expected = expected_sums(packed, None, activations)
    for count in NUM_ROWS:
        out = poisoned(count, n)
        multiply(library, packed, activations, out, num_rows=count)
        assert_within(results(out, count, n), *expected)


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
    for n, k in shapes_for(type, SHAPES):
        packed, activations, sums, bound = product_of(type, n, k, has_bias=True)
        before = torch.randn(NUM_ROWS[-1], n)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, n)
            out[:num_rows, :n] = before[:num_rows]
            multiply(library, packed, activations, out, num_rows=num_rows, epilogue=Epilogue.ACCUMULATE)
            assert_within(results(out, num_rows, n), before.double() + sums, bound)


@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.ACCUMULATE], ids=lambda epilogue: epilogue.name)
def test_interleaved_panels_store_gates_first_and_then_ups(library: NativeLibrary, type: Type, epilogue: Epilogue):
    for half, k in shapes_for(type, HALVES):
        packed, activations, *expected = product_of(type, 2 * half, k, has_bias=True, interleaved=True)
        for num_rows in NUM_ROWS:
            out = poisoned(num_rows, 2 * half)
            out[:num_rows, : 2 * half] = 0
            multiply(library, packed, activations, out, num_rows=num_rows, epilogue=epilogue)
            assert_within(results(out, num_rows, 2 * half), *expected)


@pytest.mark.parametrize(("has_bias", "dtype"), BIAS_AND_TYPE, ids=str)
def test_gated_products_are_the_activated_gate_times_up(
    library: NativeLibrary, type: Type, has_bias: bool, dtype: torch.dtype
):
    for half, k in shapes_for(type, HALVES):
        packed, activations, sums, bounds = product_of(type, 2 * half, k, has_bias=has_bias, interleaved=True)
        (gate, up), (gate_bound, up_bound) = sums.split(half, 1), bounds.split(half, 1)
        # The slopes of both functions are at most 1.13; the error of their exponentials is 1e-6.
        bound = 1.13 * gate_bound * (up.abs() + up_bound) + gate.abs() * (up_bound + 1e-6 * up.abs())
        for activation, (function, counts) in ACTIVATIONS.items():
            how = {"epilogue": Epilogue.GATED, "activation": activation}
            for num_rows in counts:
                out = poisoned(num_rows, half, dtype)
                multiply(library, packed, activations, out, num_rows=num_rows, **how)
                assert_within(results(out, num_rows, half), function(gate) * up, bound, dtype)


# With AMX the longer rows are split into blocks.
BATCH_SIZES = {150: (*range(1, 25), 31, 32, 33, 48, 63, 64, 100), 704: (16, 17, 40, 64, 70, 129, 260, 400)}


@pytest.mark.parametrize(
    ("epilogue", "k"),
    grid(lambda epilogue, k: k == 150 or epilogue is Epilogue.GATED, Epilogue, BATCH_SIZES),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_row_has_the_same_bits_in_any_batch(
    library: NativeLibrary, type: Type, num_planes: int, epilogue: Epilogue, k: int
):
    batch_sizes = BATCH_SIZES[k]
    n, max_rows = 200, max(batch_sizes)
    k = columns_for(type, k)
    packed, _ = make_packed(type, n, k, has_bias=True, interleaved=epilogue is Epilogue.GATED, num_planes=num_planes)
    activations = make_activations(type, max_rows, k, num_planes)
    width = n // 2 if epilogue is Epilogue.GATED else n
    alone = torch.zeros(max_rows, width)
    for row in range(max_rows):
        multiply(library, packed, activations.starting_at(row), alone[row:], num_rows=1, epilogue=epilogue)
    for num_rows in batch_sizes:
        for num_threads in (1, 2) if num_rows % 3 == 1 or num_rows > 64 else (1,):
            out = torch.zeros(num_rows, width)
            multiply(library, packed, activations, out, num_rows=num_rows, num_threads=num_threads, epilogue=epilogue)
            assert torch.equal(out, alone[:num_rows]), f"{num_rows} rows, {num_threads} threads"


@pytest.mark.parametrize("epilogue", list(Epilogue), ids=lambda epilogue: epilogue.name)
@pytest.mark.parametrize(("n", "k"), [(33, 1), (70, 37), (200, 352)])
def test_amx_has_the_bits_of_vector_instructions(type: Type, num_planes: int, epilogue: Epilogue, n: int, k: int):
    """Of quantized panels; rows of several tiles, and numbers of groups that are no multiple of those taken at once."""
    amx, vectors = load("amx" if HAS_AMX else EMULATED_AMX), load_set(as_tested("avx512_bf16"))
    if type not in KINDS or amx is None or vectors is None:
        pytest.skip("no quantized panels, or no AVX-512 with bf16")
    n, k = n + n % 2, columns_for(type, k)
    packed, _ = make_packed(type, n, k, has_bias=True, interleaved=epilogue is Epilogue.GATED, num_planes=num_planes)
    activations = make_activations(type, 300, k, num_planes)
    for num_rows in (15, 16, 17, 33, 128, 129, 300):
        outs = [torch.zeros(num_rows, n // 2 if epilogue is Epilogue.GATED else n) for _ in range(2)]
        for library, out in zip((amx, vectors), outs, strict=True):
            multiply(library, packed, activations, out, num_rows=num_rows, num_threads=2, epilogue=epilogue)
        assert torch.equal(*outs) and outs[0].any(), f"{num_rows} rows"


# With 573 and 575 columns the last registers of AMX are partly padding.
@pytest.mark.parametrize(("num_rows", "k"), [(40, 1088), (150, 573), (300, 575), (521, 1088)])
def test_many_rows_of_long_columns_are_correct(
    library: NativeLibrary, type: Type, num_planes: int, num_rows: int, k: int
):
    k = columns_for(type, k)
    packed, bias = make_packed(type, 70, k, has_bias=True, num_planes=num_planes)
    activations = make_activations(type, num_rows, k, num_planes)
    out = poisoned(num_rows, 70)
    multiply(library, packed, activations, out, num_threads=2)
    assert_within(results(out, num_rows, 70), *expected_sums(packed, bias, activations))


def test_a_product_of_no_rows_writes_nothing(library: NativeLibrary, type: Type):
    k = columns_for(type, 20)
    packed, _ = make_packed(type, 40, k)
    out = poisoned(3, 40)
    multiply(library, packed, make_activations(type, 3, k), out, num_rows=0)
    assert (out == POISON).all()


def test_more_threads_than_panels_share_the_rows(library: NativeLibrary, type: Type):
    k = columns_for(type, 70)
    packed, bias = make_packed(type, 20, k)
    activations = make_activations(type, 30, k)
    out = poisoned(30, 20)
    multiply(library, packed, activations, out, num_threads=5)
    assert_within(results(out, 30, 20), *expected_sums(packed, bias, activations))


@pytest.mark.parametrize("k", [1, 31, 32, 100, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_planes", [1, 2])
def test_activations_are_quantized_by_groups(library: NativeLibrary, num_planes: int, dtype: torch.dtype, k: int):
    values = torch.randn(5, k, generator=torch.Generator().manual_seed(k)).to(dtype)
    values[1] = 0
    values[2, -1] = 1000
    quantized = QuantizedRows.allocate(5, k, num_planes)
    library.run(Code.QUANTIZE, records.Quantize(x=Matrix.of(values), out=quantized.fields, width=k), 5, 2)
    groups = functional.pad(values.float(), (0, -k % GROUP)).unflatten(1, (-1, GROUP))
    num_bytes = groups[0].numel() * num_planes
    planes = quantized.integers[:, :num_bytes].int().unflatten(1, (groups.shape[1], num_planes, GROUP))
    integers = planes[:, :, 0] if num_planes == 1 else planes[:, :, 0] * 256 + planes[:, :, 1]
    (scales, sums), negative = (
        quantized.groups[..., :8].contiguous().view(torch.float32).unbind(2),
        (quantized.groups[..., 8:].contiguous().view(torch.int32)),
    )
    largest = 127 if num_planes == 1 else 127 * 257
    assert torch.allclose(scales, groups.abs().amax(2).clamp(min=1e-12) / largest, rtol=1e-6)
    assert ((integers * scales[:, :, None] - groups).abs() <= scales[:, :, None] * 0.503).all()
    assert torch.equal(negative[..., 0], -integers.sum(2, dtype=torch.int32))
    assert torch.equal(negative[..., 1], -integers[..., : GROUP // 2].sum(2, dtype=torch.int32))
    assert torch.equal(sums, scales * integers.sum(2))
    assert not quantized.integers[:, num_bytes:].any()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_activations_that_are_not_finite_are_not_hidden(library: NativeLibrary, broken: float):
    """A NaN must reach the logits, where the request fails."""
    for type in KINDS:
        for num_planes in (1, 2):
            k = columns_for(type, 70)
            values = torch.ones(3, k)
            values[1, 40] = broken
            packed, _ = make_packed(type, 40, k, num_planes=num_planes)
            quantized = QuantizedRows.allocate(3, k, num_planes)
            library.run(Code.QUANTIZE, records.Quantize(x=Matrix.of(values), out=quantized.fields, width=k), 3, 1)
            out = torch.zeros(3, 40)
            fields = records.Linear(weight=packed.fields, quantized=quantized.fields, out=Matrix.of(out))
            library.run(Code.LINEAR, fields, 3, 1)
            assert not out[1].isfinite().any() and out[[0, 2]].isfinite().all()


def test_rows_of_panels_are_looked_up(library: NativeLibrary, type: Type):
    """A tied embedding is stored once, in the panels of the output layer."""
    ids = torch.tensor([0, 31, 32, 69, 5])
    for k in {columns_for(type, k) for k in (31, 96)}:
        packed, _ = make_packed(type, 70, k)
        out = poisoned(5, k)
        fields = records.Embed(ids=ids.data_ptr(), packed=packed.fields, out=Matrix.of(out), width=k, scale=2.0)
        library.run(Code.EMBED, fields, 5, 2)
        wanted = 2 * packed.unpacked()[ids].double()
        assert (results(out, 5, k) - wanted).abs().max() <= 2**-22 * wanted.abs().max()
