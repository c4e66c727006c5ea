"""The activated gate times up on the GPU, or in the interpreter, compared with the reference."""

from functools import partial

import pytest
import torch

from app.kernels.triton.layers import gate
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": partial(torch.nn.functional.gelu, approximate="tanh")}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 100, 1024, 1500])
def test_the_result_is_the_activated_gate_times_up(width, dtype, activation):
    x = noise(3, 2 * width + 8, dtype=dtype).to(DEVICE)[:, : 2 * width] * 4
    out = torch.full((3, width), torch.nan, dtype=dtype, device=DEVICE)
    expected, reference = torch.empty_like(out), ReferenceOps()
    gate.gate_mul(x, activation, out=out)
    {"silu": reference.silu_mul, "gelu": reference.gelu_mul}[activation](x, out=expected)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_gates_give_zero_or_the_product(activation):
    x = torch.tensor([[-1e30, -200.0, -100.0, 0.0, 200.0, 1e30, 2, 2, 2, 2, 2, 2]], device=DEVICE)
    out = torch.full((1, 6), torch.nan, device=DEVICE)
    gate.gate_mul(x, activation, out=out)
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 400.0, 2e30]], device=DEVICE)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activated_gate_is_rounded_before_the_product(activation):
    given = torch.linspace(-4, 4, 400, device=DEVICE).half()
    x = torch.cat([given, torch.full_like(given, 3.0)])[None]
    out = torch.empty(1, 400, dtype=torch.float16, device=DEVICE)
    gate.gate_mul(x, activation, out=out)
    rounded = ACTIVATIONS[activation](given.double()).half() * 3
    assert (out[0] == rounded).float().mean() > 0.99


def test_no_rows_launch_no_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "_gate_mul_kernel", None)  # a launch would raise
    gate.gate_mul(torch.empty(0, 8, device=DEVICE), "silu", out=torch.empty(0, 4, device=DEVICE))
