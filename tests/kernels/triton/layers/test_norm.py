"""RMSNorm on the GPU, or in the interpreter, compared with the reference."""

import pytest
import torch

from app.kernels.triton.layers import norm
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter truncates bfloat16 instead of rounding: three roundings may each differ by a unit in the last place.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 3e-2}
WIDTHS = [1, 64, 576, 1024, 5120, 8192, 8200, 17000]


def inputs(width: int, dtype: torch.dtype):
    """Five rows and their residuals, inside wider matrices, and a weight."""
    x, residual = (noise(5, width + 16, dtype=dtype, seed=seed).to(DEVICE)[:, :width] for seed in (0, 1))
    return x, residual, noise(width, dtype=dtype, seed=2).to(DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_normalized(width, dtype):
    x, _, weight = inputs(width, dtype)
    out, expected = torch.full_like(x, torch.nan), torch.empty_like(x)
    norm.rms_norm(x, weight, 1e-5, out=out)
    ReferenceOps().rms_norm(x, weight, 1e-5, out=expected)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_residual_is_added_before_the_norm(width, dtype):
    x, residual, weight = inputs(width, dtype)
    summed, expected = residual.clone(), torch.empty_like(x)
    ReferenceOps().add_rms_norm(x, summed, weight, 1e-5, out=expected)
    around, out = residual.as_strided((5, 16), (width + 16, 1), width).clone(), torch.full_like(x, torch.nan)
    norm.add_rms_norm(x, residual, weight, 1e-5, out=out)
    exact = dtype != torch.bfloat16 or DEVICE == "cuda"
    torch.testing.assert_close(residual, summed, **({"rtol": 0, "atol": 0} if exact else {"rtol": 8e-3, "atol": 1e-3}))
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(residual.as_strided((5, 16), (width + 16, 1), width), around), "wrote outside of the rows"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [64, 1024, 8200])
def test_columns_are_normalized_in_place(width, dtype):
    """The queries, then the keys, of rows that hold values too; weights of float32."""
    x = noise(3, 3 * width, dtype=dtype).to(DEVICE)
    weight, expected = noise(2 * width, seed=1).to(DEVICE), x.clone()
    for columns in (slice(0, width), slice(width, 2 * width)):
        ReferenceOps().rms_norm(x[:, columns], weight[columns], 1e-5, out=expected[:, columns])
        norm.rms_norm(x[:, columns], weight[columns], 1e-5, out=x[:, columns])
    torch.testing.assert_close(x, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(x[:, 2 * width :], expected[:, 2 * width :])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 100, 1024, 8200])
def test_the_residual_is_added_without_a_norm(width, dtype):
    x, residual, _ = inputs(width, dtype)
    expected, behind = residual + x, residual.as_strided((5, 16), (width + 16, 1), width).clone()
    norm.add(x, residual, out=x)
    exact = dtype != torch.bfloat16 or DEVICE == "cuda"
    torch.testing.assert_close(x, expected, **({"rtol": 0, "atol": 0} if exact else {"rtol": 8e-3, "atol": 1e-3}))
    assert torch.equal(residual, x)
    assert torch.equal(residual.as_strided((5, 16), (width + 16, 1), width), behind), "wrote outside of the rows"


@pytest.mark.parametrize("width", [576, 8200])
def test_a_row_has_the_same_bits_in_any_batch(width):
    x, residual, weight = inputs(width, torch.float32)
    alone, together = torch.empty_like(x), torch.empty_like(x)
    norm.add_rms_norm(x, residual.clone(), weight, 1e-5, out=together)
    norm.add_rms_norm(x[3:4], residual.clone()[3:4], weight, 1e-5, out=alone[3:4])
    assert torch.equal(alone[3], together[3])


def test_the_residual_is_rounded_before_it_is_normalized():
    """2048 + 0.9 is 2048 in float16."""
    x = torch.tensor([[0.9, 0.0]], dtype=torch.float16, device=DEVICE)
    out = torch.empty(1, 2, device=DEVICE)
    norm.add_rms_norm(x, torch.full_like(x, 2048.0), torch.ones(2, dtype=torch.float16, device=DEVICE), 0.0, out=out)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-6, atol=0)


def test_no_rows_launch_no_kernel(monkeypatch: pytest.MonkeyPatch):
    for kernel in ("_rms_norm_kernel", "_wide_rms_norm_kernel", "_add_kernel"):
        monkeypatch.setattr(norm, kernel, None)  # a launch would raise
    empty = torch.empty(0, 64, device=DEVICE)
    norm.rms_norm(empty, torch.ones(64, device=DEVICE), 1e-5, out=empty)
    norm.add(empty, empty, out=empty)


def test_the_normalized_value_is_rounded_before_the_weight():
    """1 + 2^-11 rounds to 1 in float16; times 3 it would be one step above 3."""
    x = torch.tensor([[1 + 2**-10, 1.0]], dtype=torch.float16, device=DEVICE)
    out = torch.empty_like(x)
    weight = torch.full((2,), 3.0, dtype=torch.float16, device=DEVICE)
    norm.rms_norm(x, weight, 0.0, out=out)
    expected = torch.empty_like(x)
    ReferenceOps().rms_norm(x, weight, 0.0, out=expected)
    assert torch.equal(out, expected)
