"""The deterministic product on the GPU, or in the interpreter: correct, and the same bits in any batch."""

import pytest
import torch

from app.kernels.triton.layers import matmul
from tests.cases import grid, long
from tests.kernels.batches import noise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# Small, because the interpreter copies it in every launch; batches of many rows do not fit it.
PARTIALS = 32
# (width, depth): one tile and many splits; ragged edges; more steps than splits; a depth below one step.
SHAPES = [(128, 1024), (200, 600), (140, 1100), (130, 40), (1, 256)]


@pytest.fixture(name="product")
def _product(monkeypatch):
    """The product, with an output of NaN that is wider than needed."""
    monkeypatch.setattr(matmul, "MAX_PARTIALS", PARTIALS)
    workspace = matmul.make_workspace(torch.device(DEVICE))
    workspace.partials.fill_(torch.nan)

    def product(x, weight, bias=None, dtype=None):
        around = torch.full((len(x) + 1, len(weight) + 8), torch.nan, dtype=dtype or x.dtype, device=DEVICE)
        out = around[: len(x), : len(weight)]
        matmul.matmul(x, weight, bias, out=out, workspace=workspace)
        assert around[len(x) :].isnan().all() and around[:, len(weight) :].isnan().all(), "wrote outside of the output"
        return out

    yield product
    assert not workspace.counters.any(), "the counters were not reset"


def operands(rows: int, width: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias."""
    x, weight = noise(rows, depth, dtype=dtype, seed=1), noise(width, depth, dtype=dtype, seed=2) / 16
    return x.to(DEVICE), weight.to(DEVICE), noise(width, dtype=dtype, seed=3).to(DEVICE)


def is_usual(shape: tuple[int, int], dtype: torch.dtype, max_partials: int) -> bool:
    """Every shape with one type and separate splits; ragged edges with every type, and with splits in one program."""
    return shape == (200, 600) or (dtype, max_partials) == (torch.bfloat16, PARTIALS)


@pytest.mark.parametrize(("shape", "dtype", "max_partials"), grid(is_usual, SHAPES, TOLERANCE, (PARTIALS, 0)), ids=str)
def test_the_product_is_correct(shape, dtype, max_partials, product, monkeypatch):
    monkeypatch.setattr(matmul, "MAX_PARTIALS", max_partials)
    x, weight, bias = operands(5, *shape, dtype)
    expected = x.double() @ weight.double().T
    tolerance = {"rtol": TOLERANCE[dtype], "atol": 4 * TOLERANCE[dtype]}
    torch.testing.assert_close(product(x, weight).double(), expected, **tolerance)
    torch.testing.assert_close(product(x, weight, bias).double(), expected + bias.double(), **tolerance)


def test_logits_are_float32(product):
    x, weight, _ = operands(3, 300, 512, torch.bfloat16)
    logits = product(x, weight, dtype=torch.float32)
    torch.testing.assert_close(logits.double(), x.double() @ weight.double().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [long(torch.float32), torch.float16],
    ids=str,
)
@pytest.mark.parametrize("shape", grid(lambda shape: shape not in [(128, 1024), (140, 1100)], SHAPES), ids=str)
def test_a_row_has_the_same_bits_in_any_batch_and_on_both_schedules(shape, dtype, product, monkeypatch):
    x, weight, bias = operands(130, *shape, dtype)
    together = product(x, weight, bias, torch.float32)
    for rows in (slice(0, 1), slice(17, 18), slice(129, 130), slice(3, 11), slice(1, 130)):
        assert torch.equal(product(x[rows], weight, bias, torch.float32), together[rows]), rows
    monkeypatch.setattr(matmul, "MAX_PARTIALS", 0)
    for rows in (slice(0, 130), slice(17, 18)):
        assert torch.equal(product(x[rows], weight, bias, torch.float32), together[rows]), rows


def test_the_values_of_padding_rows_change_no_other_row(product):
    x, weight, _ = operands(8, 200, 1000, torch.float32)
    clean = product(x, weight)
    x[5:] = torch.nan
    assert torch.equal(product(x, weight)[:5], clean[:5])


def test_the_splits_depend_only_on_the_weight():
    assert matmul.splits_of(4096, 4096, 128, 64) == (4, 16 * 64)
    assert matmul.splits_of(28672, 4096, 128, 64) == (1, 4096)
    assert matmul.splits_of(1024, 3072, 128, 64) == (6, 8 * 64)
    assert matmul.splits_of(128, 40, 128, 64) == (1, 64)
    for width in (1, 100, 1024, 4096, 6144, 151936):
        for depth in (1, 64, 100, 1024, 4096, 14336):
            splits, each = matmul.splits_of(width, depth, 128, 64)
            assert (splits - 1) * each < depth <= splits * each, "a split is empty"
            assert splits == 1 or -(-width // 128) * splits <= matmul.PROGRAMS


def test_a_product_of_no_rows_works(product):
    assert product(torch.empty(0, 64, device=DEVICE), torch.ones(128, 64, device=DEVICE)).shape == (0, 128)
