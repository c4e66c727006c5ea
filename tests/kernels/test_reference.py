"""The reference operations, which specify all others, compared with functions of torch."""

import pytest
import torch
from torch.nn import functional

from app.kernels.ops import LinearWeight
from tests.kernels.batches import Heads, make_step, noise
from tests.kernels.reference import ReferenceOps


@pytest.mark.parametrize("window", [None, 1, 5])
def test_attention_is_scaled_dot_product_attention(window: int | None):
    heads, length = Heads(4, 2, 8), 37
    step = make_step([(0, length)], heads)
    q_TNH = noise(step.num_rows, 4, 8)
    out = torch.empty_like(q_TNH)
    ops = ReferenceOps()
    ops.begin_step(step.batch)
    ops.paged_attention(q_TNH, *step.caches(), 0.3, window, out=out)
    k, v = (
        cache[step.batch.block_tables_SB[1].long()].flatten(0, 1)[:length].transpose(0, 1) for cache in step.caches()
    )
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = (distance >= 0) & (distance < (window or length))
    q = q_TNH[:length].transpose(0, 1)
    expected = functional.scaled_dot_product_attention(q[None], k[None], v[None], visible, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out[:length], expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_norms_linear_and_activations_equal_those_of_torch():
    ops = ReferenceOps()
    x, weight = noise(8, 24), noise(24, seed=1)
    out = torch.empty_like(x)
    ops.rms_norm(x, weight, 1e-5, out=out)
    torch.testing.assert_close(out, functional.rms_norm(x, (24,), weight, 1e-5))
    residual = noise(8, 24, seed=2)
    summed = residual.clone()
    ops.add_rms_norm(x, summed, weight, 1e-5, out=out)
    torch.testing.assert_close(summed, x + residual)
    torch.testing.assert_close(out, functional.rms_norm(x + residual, (24,), weight, 1e-5))
    product = torch.empty(8, 5)
    linear = LinearWeight(noise(5, 24, seed=3), noise(5, seed=4))
    ops.linear(x, linear, out=product)
    torch.testing.assert_close(product, functional.linear(x, linear.weight, linear.bias))
    activated = torch.empty(8, 12)
    ops.silu_mul(x, out=activated)
    torch.testing.assert_close(activated, functional.silu(x[:, :12]) * x[:, 12:])
    ops.gelu_mul(x, out=activated)
    torch.testing.assert_close(activated, functional.gelu(x[:, :12], approximate="tanh") * x[:, 12:])
    ops.add_rms_norm(x, summed, None, 1e-5, out=out)
    assert torch.equal(out, summed)
    ops.softcap(x, 0.5, out=out)
    torch.testing.assert_close(out, 0.5 * torch.tanh(2 * x))


def test_rotation_rotates_pairs_by_the_angle_of_their_position():
    """For a head of one pair, (1, 0) at position p becomes (cos, sin) of p times the frequency."""
    heads = Heads(1, 1, 2)
    step = make_step([(0, 6)], heads)
    angles = 0.5 * torch.arange(8.0)
    rope_PH = torch.stack([angles.cos(), angles.sin()], dim=-1)
    qkv_TX = torch.tensor([[1.0, 0.0, 0.0, 1.0, 3.0, 4.0]]).repeat(step.num_rows, 1)
    out = torch.empty(step.num_rows, 1, 2)
    keys, values = step.caches()
    ops = ReferenceOps()
    ops.begin_step(step.batch)
    query_scale_P = torch.arange(8.0) + 2
    ops.qk_norm_rope_kv_write(qkv_TX, None, 1e-5, rope_PH, keys, values, query_scale_P, out=out)
    torch.testing.assert_close(out[:6, 0], rope_PH[:6] * query_scale_P[:6, None])
    block = int(step.batch.block_tables_SB[1, 0])
    torch.testing.assert_close(keys[block, :6, 0], torch.stack([-angles[:6].sin(), angles[:6].cos()], dim=-1))
    assert torch.equal(values[block, :6, 0], torch.tensor([[3.0, 4.0]]).repeat(6, 1))


def test_blocks_are_copied_in_all_layers_for_keys_and_values():
    """All values of a block are its number, so the copies can be checked by number."""
    device = torch.arange(6.0).view(1, 1, 6, 1, 1, 1).repeat(2, 2, 1, 4, 1, 3)
    host = 10 + torch.arange(4.0).view(1, 1, 4, 1, 1, 1).repeat(2, 2, 1, 4, 1, 3)
    ops = ReferenceOps()
    ops.copy_blocks(torch.tensor([[1, 4], [1, 5], [2, 3]]), out=device)
    ops.swap_blocks(host, torch.tensor([[3, 1]]), out=device)
    assert (device == torch.tensor([0.0, 13, 2, 2, 1, 1]).view(1, 1, 6, 1, 1, 1)).all()
    assert (host == torch.tensor([10.0, 11, 12, 13]).view(1, 1, 4, 1, 1, 1)).all()
