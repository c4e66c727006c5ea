"""Operations on whole rows, native and by torch, compared with the reference, and bitwise with the same rows alone.

Tolerances: float32 differs by the order of sums and by functions within 1e-6; bfloat16 by one rounding of the result,
and of an intermediate value if both round one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.native_ops import NativeOps, Recorder
from app.kernels.cpu.packers import PanelPacker
from app.kernels.cpu.records import Code
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import LinearWeight, Ops, pad_rows
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

ROWS = (1, 2, 7, 8, 33)
WIDTHS = (1, 37, 576)
TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 2**-7}}
EPS = 1e-5


def norm_in_place(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    out = x.clone()
    ops.rms_norm(out, noise(x.shape[1], dtype=x.dtype, seed=1), EPS, out=out)
    return out


def norm_of_columns(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    """In place, with a weight in float32; the columns beside them stay."""
    out = torch.full((len(x), x.shape[1] + 8), 7.0, dtype=wide)
    columns = out[:, 5:-3]
    columns.copy_(x)
    ops.rms_norm(columns, noise(x.shape[1], seed=1), EPS, out=columns)
    assert (out[:, :5] == 7).all() and (out[:, -3:] == 7).all()
    return columns.clone()


def sum_and_norm(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    return _add(ops, x, wide, noise(x.shape[1], dtype=x.dtype, seed=1))


def sum_and_copy(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    return _add(ops, x, wide, None)


def _add(ops: Ops, x: Tensor, wide: torch.dtype, weight: Tensor | None) -> Tensor:
    residual, out = x.flip(1).to(wide).contiguous() * 0.3, torch.zeros_like(x)
    ops.add_rms_norm(x, residual, weight, EPS, out=out)
    return torch.cat([residual, out], dim=1)


def silu_mul(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    gate_up, out = torch.cat([3 * x, x.flip(1)], dim=1).to(wide), torch.zeros_like(x)
    ops.silu_mul(gate_up, out=out)
    return out


def gelu_mul(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    gate_up, out = torch.cat([3 * x, x.flip(1)], dim=1).to(wide), torch.zeros_like(x)
    ops.gelu_mul(gate_up, out=out)
    return out


def softcap(ops: Ops, x: Tensor, wide: torch.dtype) -> Tensor:
    out = 2 * x.float()
    ops.softcap(out, 1.3, out=out)
    return out


OPERATIONS = (norm_in_place, norm_of_columns, sum_and_norm, sum_and_copy, silu_mul, gelu_mul, softcap)
Operation = Callable[[Ops, Tensor, torch.dtype], Tensor]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_native_rows_equal_the_reference_and_themselves_alone(
    operation: Operation, dtype: torch.dtype, library: NativeLibrary
):
    for width in WIDTHS:
        x = noise(max(ROWS), width, dtype=dtype)
        torch.set_num_threads(1)
        alone = torch.cat([operation(NativeOps(library), row[None], torch.float32) for row in x])
        torch.testing.assert_close(alone, operation(ReferenceOps(), x, torch.float32), **TOLERANCES[dtype])
        torch.set_num_threads(3)
        for rows in ROWS:
            assert torch.equal(operation(NativeOps(library), x[:rows], torch.float32), alone[:rows]), f"{rows} rows"


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_rows_by_torch_equal_the_reference_and_themselves_alone(operation: Operation, dtype: torch.dtype):
    """Alone: among rows of padding. Logits are so many that threads share a row."""
    for width in (*WIDTHS, 40_001) if operation is softcap else WIDTHS:
        x = noise(40, width, dtype=dtype)
        found = operation(TorchOps(), x, dtype)
        torch.testing.assert_close(found, operation(ReferenceOps(), x, dtype), **TOLERANCES[dtype])
        for row, num_threads in ((0, 1), (6, 2), (32, 3)):
            torch.set_num_threads(num_threads)
            padding = torch.zeros(pad_rows(1) - 1, width, dtype=dtype)
            alone = operation(TorchOps(), torch.cat([x[row : row + 1], padding]), dtype)
            assert torch.equal(alone[0], found[row])


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_a_cap_is_exact_to_a_millionth_in_every_column(cap: float, library: NativeLibrary):
    """Of small and large scores, relative to the result, in more columns than one thread takes at once."""
    x = torch.cat([cap * noise(3, 9000) * 2, cap * 10 ** (8 * noise(3, 731).abs().clamp(max=4) - 8.0)], dim=1)
    x[1] *= -1
    x[2, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    wanted = cap * (x.double() / cap).tanh()
    torch.set_num_threads(2)
    outs = []
    for first in (0, 1):
        outs.append(torch.zeros_like(x[:, first:]))
        NativeOps(library).softcap(x[:, first:], cap, out=outs[-1])
    error = (outs[0] - wanted).abs()
    assert ((error <= 1e-6 * wanted.abs()) | wanted.isnan()).all()
    torch.testing.assert_close(outs[1], outs[0][:, 1:], rtol=0, atol=0, equal_nan=True)


def test_gelu_has_the_limits_of_its_formula(library: NativeLibrary):
    gates = torch.tensor([[0.0, -0.0, 1e-30, -30.0, 30.0, 1e20, torch.inf, torch.nan]])
    out = torch.full((1, 8), 7.0)
    NativeOps(library).gelu_mul(torch.cat([gates, torch.ones(1, 8)], dim=1), out=out)
    torch.testing.assert_close(out, torch.nn.functional.gelu(gates, approximate="tanh"), equal_nan=True)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_embeddings_are_rounded_to_the_type_of_the_result(quantization: str | None, library: NativeLibrary):
    """From rows as they are, and from the panels of the output layer."""
    plain = LinearWeight(noise(50, 70, dtype=torch.bfloat16))
    ids = torch.tensor([0, 49, 7, 7, 33])
    for table in (plain, PanelPacker(quantization).tied(plain)[0]):
        exact, rounded = torch.zeros(5, 70), torch.zeros(5, 70, dtype=torch.bfloat16)
        for out in (exact, rounded):
            NativeOps(library).embed(ids, table, 2.3, out=out)
        assert torch.equal(rounded, exact.bfloat16())
        torch.testing.assert_close(exact, 2.3 * plain.weight[ids].float(), rtol=1e-6, atol=0.05 if quantization else 0)


# --- Recorded ------------------------------------------------------------------------------------------------------


def test_what_a_norm_writes_in_place_is_also_quantized(library: NativeLibrary):
    """And the residual itself, without a weight."""
    packed = PanelPacker("int8").linear(LinearWeight(noise(64, 96, seed=2)))
    for weight in (noise(96, seed=1), None):
        outs = []
        for ops in (NativeOps(library), recorder := Recorder(library)):
            x, residual, out = noise(7, 96), noise(7, 96, seed=3), torch.zeros(7, 64)
            ops.rms_norm(x, noise(96, seed=4), EPS, out=x)
            ops.linear(x, packed, out=out)
            first, out = out, torch.zeros(7, 64)
            ops.add_rms_norm(x, residual, weight, EPS, out=x)
            ops.linear(x, packed, out=out)
            outs += [[x, first, residual, out]]
        program = recorder.program()
        assert list(program.codes) == [Code.NORM, Code.LINEAR, Code.ADD, Code.NORM, Code.LINEAR]
        program.replay(7, 0, 2)
        assert all(torch.equal(*pair) for pair in zip(*outs, strict=True)) and outs[0][3].any()


def test_only_logits_that_are_wanted_are_capped(library: NativeLibrary):
    recorder = Recorder(library)
    hidden, last, logits = noise(8, 16), torch.zeros(8, 16), torch.zeros(8, 40)
    head = PanelPacker(None).linear(LinearWeight(noise(40, 16, seed=1)))
    recorder.gather_rows(hidden, torch.tensor([3, 1, 7, 0, 0, 0, 0, 0]), out=last)
    recorder.logits(last, head, out=logits)
    recorder.softcap(logits, 0.5, out=logits)
    recorder.program().replay(8, 3, 2)
    wanted = 0.5 * (hidden[[3, 1, 7]] @ noise(40, 16, seed=1).T / 0.5).tanh()
    torch.testing.assert_close(logits[:3], wanted)
    assert not logits[3:].any()
