"""Rescaled weights compute the same function, and lie on another grid."""

from __future__ import annotations

import pytest
import torch

from app.checkpoint.inspection import inspect
from app.config.settings import make_config
from benchmarks.perplexity.scored_model import ScoredModel
from benchmarks.perplexity.weights import MemorySource, read_weights, rescaled
from tests.checkpoints import tiny

TOKENS = list(range(2, 200, 3))


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
def test_rescaled_weights_compute_the_same_from_other_numbers(architecture):
    """Qwen2 has biases of values, Qwen3 norms of queries and keys; in all of them two heads share keys and values."""
    settings = {"model": str(tiny(architecture)), "dtype": "float32"}
    files = inspect(make_config(settings).model)
    weights = read_weights(files)
    changed = rescaled(weights, files.spec)
    found, expected = (ScoredModel(settings, MemorySource(each)).logits(TOKENS) for each in (changed, weights))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(expected, ScoredModel(settings).logits(TOKENS), rtol=0, atol=0)
    matrices = [name for name in weights if "_proj.weight" in name and "o_proj" not in name]
    assert len(matrices) == 12 and all(not torch.equal(weights[name], changed[name]) for name in matrices)
    factors = changed["model.layers.0.self_attn.o_proj.weight"] / weights["model.layers.0.self_attn.o_proj.weight"]
    assert float(factors.min()) >= 0.699 and float(factors.max()) <= 1.401 and float(factors.std()) > 0.1


def test_a_seed_always_gives_the_same_factors():
    files = inspect(make_config({"model": str(tiny())}).model)
    spec = files.spec
    weights, name = read_weights(files), "model.layers.1.mlp.down_proj.weight"
    first, second, other = (rescaled(weights, spec, seed)[name] for seed in (0, 0, 1))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_weights_that_are_rescaled_in_one_place_only_compute_something_else():
    settings = {"model": str(tiny()), "dtype": "float32"}
    files = inspect(make_config(settings).model)
    weights = read_weights(files)
    wrong = weights | {"model.norm.weight": rescaled(weights, files.spec)["model.layers.0.input_layernorm.weight"]}
    found, expected = (ScoredModel(settings, MemorySource(each)).logits(TOKENS) for each in (wrong, weights))
    assert float((found - expected).abs().max()) > 0.1
