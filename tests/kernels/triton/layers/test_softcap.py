"""Logits with a cap on the GPU, or in the interpreter, compared with exact ones."""

import pytest
import torch

from app.kernels.triton.layers import softcap
from tests.kernels.batches import noise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("width", [1, 300, 2048, 5000])
@pytest.mark.parametrize("in_place", [False, True])
def test_numbers_are_kept_below_the_cap(width, in_place):
    around = noise(3, width + 8).to(DEVICE) * 6
    x, behind = around[:, :width], around[:, width:].clone()
    expected = 5 * torch.tanh(x.double() / 5)
    out = x if in_place else torch.full((3, width), torch.nan, device=DEVICE)
    softcap.softcap(x, 5.0, out=out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=2e-6)
    assert torch.equal(around[:, width:], behind), "wrote outside of the rows"


def test_extreme_numbers_become_the_cap_and_nan_stays():
    x = torch.tensor([[-torch.inf, -1e30, -1e-30, 0.0, 1e30, torch.inf, torch.nan]], device=DEVICE)
    out = torch.empty_like(x)
    softcap.softcap(x, 30.0, out=out)
    expected = torch.tensor([[-30.0, -30.0, 0.0, 0.0, 30.0, 30.0, torch.nan]], device=DEVICE)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_no_rows_launch_no_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(softcap, "_softcap_kernel", None)  # a launch would raise
    softcap.softcap(torch.empty(0, 8, device=DEVICE), 1.0, out=torch.empty(0, 8, device=DEVICE))
