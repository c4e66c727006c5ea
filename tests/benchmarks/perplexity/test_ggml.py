"""The formats of llama.cpp: matrices are rounded, vectors are not, and inputs as ggml's own Q8_0 rounds them."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from app.kernels.ops import LinearWeight
from benchmarks.perplexity.ggml import Q8Ops, round_groups, rounded


def test_inputs_are_rounded_as_ggml_rounds_q8_0():
    sizes_X = torch.tensor([1e-3, 1.0, 30.0]).repeat_interleave(32)
    x_TX = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)) * sizes_X
    x_TX[2, :32] = 0
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.quants.dequantize(gguf.quants.quantize(x_TX.numpy(), kind), kind)
    np.testing.assert_array_equal(round_groups(x_TX).numpy(), expected)


def test_products_read_rounded_inputs():
    x_TX, out = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)), torch.empty(8, 64)
    Q8Ops().linear(x_TX, LinearWeight(torch.eye(64)), out=out)
    assert torch.equal(out, round_groups(x_TX)) and not torch.equal(out, x_TX)


def test_matrices_are_rounded_and_those_at_the_ends_to_8_bits():
    generator = torch.Generator().manual_seed(2)
    names = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight")
    weights = {name: torch.randn(64, 64, generator=generator) for name in names}
    weights["model.norm.weight"] = torch.randn(64, generator=generator)
    found = rounded(weights, "Q4_1")
    errors = [float((found[name] - tensor).abs().max()) for name, tensor in weights.items()]
    assert 0 < errors[0] < 0.03 < errors[1] < 0.3 and errors[2] == 0
