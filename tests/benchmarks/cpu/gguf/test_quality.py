"""Divergences from float32: of Quire's own arithmetic, and of predictions in a file of llama.cpp."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.cpu.gguf.quality import compare
from benchmarks.perplexity.scored_model import MAX_TOKENS, ScoredModel
from tests.gguf_writer import tiny_gguf


def write_predictions(file: Path, model: ScoredModel, tokens: list[int], noise: float, least_below: float) -> None:
    """Write what llama.cpp would for one window, if it predicted what `model` does, with some noise.

    Nothing is further below the likeliest than `least_below`.
    """
    logprobs = torch.log_softmax(model.logits(tokens, len(tokens) // 2)[:-1], -1)
    noisy = torch.log_softmax(logprobs + noise * torch.randn(logprobs.shape), -1).double().numpy()
    least = np.maximum(noisy.min(-1, keepdims=True), noisy.max(-1, keepdims=True) - least_below)
    noisy = np.maximum(noisy, least)
    scales = (noisy.max(-1, keepdims=True) - least) / 65535
    factors = np.concatenate([scales, least], 1).astype(np.float32).view(np.uint16)
    rows = np.concatenate([factors, np.round((noisy - least) / scales).astype(np.uint16)], 1)
    sizes = np.array([len(tokens), noisy.shape[1], 1], np.int32)
    assert noisy.shape[1] % 2 == 0
    file.write_bytes(b"_logits_" + sizes.tobytes() + np.array(tokens, np.int32).tobytes() + rows.tobytes())


@pytest.mark.parametrize(("noise", "least_below"), [(0.0, 16.0), (0.1, 16.0), (0.1, 6.0)])
def test_both_sides_are_compared_with_the_weights_in_float32(tmp_path, noise, least_below):
    """The last case raises some tokens, as llama.cpp does in large vocabularies."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    file = str(tiny_gguf(tmp_path / "m.gguf", kind="Q8_0", vocab_size=320))
    exact = ScoredModel({"model": file, "dtype": "float32"})
    tokens = [index * 7 % 300 for index in range(MAX_TOKENS)]
    write_predictions(tmp_path / "theirs", exact, tokens, noise, least_below)
    found = compare(exact, ScoredModel({"model": file, "dtype": "bfloat16"}), tmp_path / "theirs")
    assert found.num_positions == MAX_TOKENS // 2 - 1
    assert 1e-8 < found.ours < 1e-3
    # The variance of the noise, half of it.
    assert found.theirs == pytest.approx(noise**2 / 2, rel=0.1, abs=1e-6)
    assert found.between == pytest.approx(found.ours + found.theirs, rel=0.2, abs=1e-6)
    assert found.perplexity_of_theirs == pytest.approx(found.perplexity, rel=1e-5 if noise == 0 else 0.05)
    assert found.perplexity_of_ours == pytest.approx(found.perplexity, rel=0.01)
