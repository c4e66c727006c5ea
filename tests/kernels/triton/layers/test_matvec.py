"""Products of few rows on the GPU, or in the interpreter, compared with separate reference operations."""

import pytest
import torch

from app.kernels.ops import LinearWeight
from app.kernels.triton.layers import matvec
from tests.cases import grid
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
EPS = 1e-5
REFERENCE = ReferenceOps()
# (rows, type): all that are supported.
SERVED = [(rows, dtype) for rows in (1, 2, 8, 13, 16) for dtype in TOLERANCE if matvec.serves(rows, dtype)]
# (width, depth): full tiles; partial ones; less than one step.
SHAPES = [(64, 1024), (70, 600), (3, 40)]


class Case:
    """Operands, and an output of NaN inside a larger tensor."""

    def __init__(self, rows: int, width: int, depth: int, dtype: torch.dtype, *, halves: int = 1):
        self.x, self.residual = (
            noise(rows, depth + 8, dtype=dtype, seed=seed).to(DEVICE)[:, :depth] for seed in (1, 2)
        )
        self.weight = (noise(width * halves, depth, dtype=dtype, seed=3) / depth**0.5).to(DEVICE)
        self.bias = noise(width * halves, dtype=dtype, seed=4).to(DEVICE)
        self.norm = noise(depth, dtype=dtype, seed=5).to(DEVICE)
        self.around = torch.full((rows + 1, width + 8), torch.nan, dtype=dtype, device=DEVICE)
        self.out = self.around[:rows, :width]
        self.tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}

    def normed(self) -> torch.Tensor:
        """rms_norm(x)."""
        normed = torch.empty_like(self.x)
        REFERENCE.rms_norm(self.x, self.norm, EPS, out=normed)
        return normed

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the weight."""
        product = torch.empty(len(x), len(self.weight), dtype=x.dtype, device=DEVICE)
        REFERENCE.linear(x, LinearWeight(self.weight, bias), out=product)
        return product

    def gated(self, x: torch.Tensor, activation: str = "silu") -> torch.Tensor:
        """activation(gate) · up."""
        out = torch.empty_like(self.out)
        {"silu": REFERENCE.silu_mul, "gelu": REFERENCE.gelu_mul}[activation](self.product(x, None), out=out)
        return out

    def check(self, expected: torch.Tensor) -> None:
        """Check the output, and that nothing outside of it was written."""
        torch.testing.assert_close(self.out, expected, **self.tolerance)
        rows, width = self.out.shape
        assert self.around[rows:].isnan().all() and self.around[:, width:].isnan().all()


def is_usual(shape: tuple[int, int], served: tuple[int, torch.dtype]) -> bool:
    """Partial tiles with all rows and types; other shapes with the fewest and the most rows of one type."""
    return shape == (70, 600) or served in [(1, torch.bfloat16), (16, torch.bfloat16)]


@pytest.mark.parametrize(("shape", "served"), grid(is_usual, SHAPES, SERVED), ids=str)
class TestProducts:
    """Every product, for all supported numbers of rows and types."""

    def test_linear(self, shape, served):
        rows, dtype = served
        case = Case(rows, *shape, dtype)
        matvec.linear(case.x, case.weight, case.bias, out=case.out)
        case.check(case.product(case.x, case.bias))

    def test_linear_add(self, shape, served):
        rows, dtype = served
        case = Case(rows, *shape, dtype)
        case.out.copy_(noise(*case.out.shape, dtype=dtype, seed=9))
        expected = case.out + case.product(case.x, None)
        matvec.linear_add(case.x, case.weight, None, residual_TD=case.out)
        case.check(expected)

    def test_norm_linear(self, shape, served):
        rows, dtype = served
        case = Case(rows, *shape, dtype)
        matvec.norm_linear(case.x, case.norm, EPS, case.weight, case.bias, out=case.out)
        case.check(case.product(case.normed(), case.bias))

    @pytest.mark.parametrize("activation", ["silu", "gelu"])
    def test_norm_gate_up(self, shape, served, activation):
        rows, dtype = served
        case = Case(rows, *shape, dtype, halves=2)
        matvec.norm_gate_up(case.x, case.norm, EPS, case.weight, activation, out=case.out)
        case.check(case.gated(case.normed(), activation))


def test_logits_are_float32():
    case = Case(5, 100, 300, torch.bfloat16)
    out = torch.full((5, 100), torch.nan, device=DEVICE)
    matvec.linear(case.x, case.weight, None, out=out)
    torch.testing.assert_close(out.double(), case.x.double() @ case.weight.double().T, rtol=1e-4, atol=1e-4)


def test_the_product_is_rounded_before_the_residual_is_added():
    weight = torch.tensor([[1.0, 2**-11]], dtype=torch.float16, device=DEVICE)
    residual = torch.tensor([[-1.0]], dtype=torch.float16, device=DEVICE)
    matvec.linear_add(torch.ones(1, 2, dtype=torch.float16, device=DEVICE), weight, None, residual_TD=residual)
    assert residual.item() == 0.0


def test_a_norm_of_large_rows_does_not_overflow():
    case = Case(8, 70, 600, torch.bfloat16)
    case.x *= 1e15
    matvec.norm_linear(case.x, case.norm, EPS, case.weight, None, out=case.out)
    case.check(case.product(case.normed(), None))


@pytest.mark.parametrize("rows", [1, 5])
def test_the_weight_of_a_norm_may_be_float32(rows):
    case = Case(rows, 70, 600, torch.bfloat16)
    case.norm = noise(600, seed=5).to(DEVICE)
    matvec.norm_linear(case.x, case.norm, EPS, case.weight, case.bias, out=case.out)
    case.check(case.product(case.normed(), case.bias))


def test_float16_is_supported_for_one_row_only():
    assert matvec.serves(1, torch.float16) and not matvec.serves(2, torch.float16)
    assert matvec.serves(16, torch.bfloat16) and not matvec.serves(17, torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(("normed", "gated"), [(False, False), (True, False), (True, True)])
def test_wide_weights_have_larger_tiles(rows, normed, gated, monkeypatch):
    """Every tile size gives the same products; narrow weights alone would not test the large tiles."""
    widths = (1024, 2112, 4224, 8448)
    tilings = [matvec._tiling(rows, width, torch.bfloat16, normed=normed, gated=gated) for width in widths]
    assert not any(width % tiling.tile for width, tiling in zip(widths, tilings, strict=True))
    for tiling in dict.fromkeys(tilings):
        monkeypatch.setattr(matvec, "_tiling", lambda *_, chosen=tiling, **__: chosen)
        case = Case(rows, 3 * tiling.tile, 600, torch.float32, halves=1 + gated)
        x = case.normed() if normed else case.x
        if gated:
            matvec.norm_gate_up(case.x, case.norm, EPS, case.weight, "silu", out=case.out)
            case.check(case.gated(x))
        elif normed:
            matvec.norm_linear(case.x, case.norm, EPS, case.weight, case.bias, out=case.out)
            case.check(case.product(x, case.bias))
        else:
            matvec.linear(case.x, case.weight, case.bias, out=case.out)
            case.check(case.product(x, case.bias))
