"""Loaded weights equal those of the checkpoint, fused where the decoder needs them fused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from app.checkpoint.inspection import inspect
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.models.file_source import FileSource
from app.models.loader import DTYPES, DummySource, load_weights
from app.models.weights import DecoderWeights
from tests.checkpoints import ARCHITECTURES, damaged_copy, tiny


def load(folder: Path, dtype: str = "auto", shares: list[float] | None = None) -> DecoderWeights:
    """The weights of a folder; the progress goes into `shares`."""
    files = inspect(ModelConfig(model=str(folder), dtype=dtype))
    with FileSource(files) as source:
        return load_weights(files.spec, source, (shares if shares is not None else []).append)


def dummy(folder: Path, seed: int) -> DecoderWeights:
    """Random weights for the config of a folder."""
    return load_weights(inspect(ModelConfig(model=str(folder))).spec, DummySource(seed))


def tensors(weights: DecoderWeights) -> list[torch.Tensor]:
    """All tensors of a decoder, in a fixed order."""
    found = [weights.embedding.weight, weights.norm, weights.lm_head.weight]
    for layer in weights.layers:
        for linear in (layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down):
            found += [linear.weight, *([] if linear.bias is None else [linear.bias])]
        found += [layer.input_norm, layer.mlp_input_norm, *([] if layer.qk_norm is None else [layer.qk_norm])]
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_the_fused_tensors_of_the_file(architecture: str):
    folder = tiny(architecture, attention_bias=True, mlp_bias=True)
    stored, weights = load_file(folder / "model.safetensors"), load(folder)
    assert torch.equal(weights.embedding.weight, stored["model.embed_tokens.weight"])
    assert torch.equal(weights.lm_head.weight, stored["lm_head.weight"])
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        for linear, block, names in (
            (layer.qkv, "self_attn", "qkv"), (layer.o, "self_attn", "o"),
            (layer.mlp.gate_up, "mlp", ("gate", "up")), (layer.mlp.down, "mlp", ("down",)),
        ):  # fmt: skip
            parts = [f"{prefix}{block}.{name}_proj" for name in names]
            assert torch.equal(linear.weight, torch.cat([stored[f"{part}.weight"] for part in parts]))
            biases = [stored[f"{part}.bias"] for part in parts if f"{part}.bias" in stored]
            assert (linear.bias is None) == (not biases)
            assert linear.bias is None or torch.equal(linear.bias, torch.cat(biases))
        assert torch.equal(layer.input_norm, stored[prefix + "input_layernorm.weight"])
        assert torch.equal(layer.mlp_input_norm, stored[prefix + "post_attention_layernorm.weight"])
        if architecture == "Qwen3":
            assert torch.equal(layer.qk_norm[0], stored[prefix + "self_attn.q_norm.weight"])
            assert torch.equal(layer.qk_norm[-1], stored[prefix + "self_attn.k_norm.weight"])
            assert layer.qk_norm.shape == (6, 16)


def test_tied_embeddings_share_memory():
    weights = load(tiny("Qwen2", tie_word_embeddings=True))
    assert weights.lm_head.weight.data_ptr() == weights.embedding.weight.data_ptr()


def test_shards_hold_the_weights_of_the_single_file():
    single, sharded = load(tiny("Qwen2")), load(tiny("Qwen2", num_shards=3))
    assert all(torch.equal(a, b) for a, b in zip(tensors(single), tensors(sharded), strict=True))


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
def test_weights_are_converted_to_the_requested_dtype(stored: str, wanted: str):
    folder = tiny("Llama", torch_dtype=stored)
    weights = load(folder, wanted)
    assert {tensor.dtype for tensor in tensors(weights)} == {DTYPES[wanted]}
    raw = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(weights.embedding.weight, raw.to(DTYPES[wanted]))
    assert load(folder, "auto").norm.dtype == DTYPES[stored]


def test_progress_rises_to_one():
    shares: list[float] = []
    load(tiny("Qwen3"), shares=shares)
    assert shares == sorted(shares) and len(shares) > 20
    assert shares[-1] == 1.0
    tied: list[float] = []
    load(tiny("Qwen2", tie_word_embeddings=True), shares=tied)
    assert tied[-1] == 1.0


def test_dummy_weights_are_the_same_for_the_same_seed():
    folder = tiny("Qwen3")
    one, same, other = dummy(folder, 3), dummy(folder, 3), dummy(folder, 4)
    assert all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(same), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    assert (one.norm == 1).all()
    assert float(one.layers[0].mlp.down.weight.var()) == pytest.approx(1 / 96, rel=0.1)


def test_an_unneeded_tensor_of_an_unknown_dtype_is_ignored(tmp_path: Path):
    """The longer header also puts all tensors at odd addresses."""
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    extra = b'{"extra":{"dtype":"FUTURE","shape":[0],"data_offsets":[0,0]},' + raw[9 : 8 + length]
    extra += b" " * (len(extra) % 2 == 0)
    file.write_bytes(len(extra).to_bytes(8, "little") + extra + raw[8 + length :])
    assert all(torch.equal(a, b) for a, b in zip(tensors(load(folder)), tensors(load(tiny("Llama"))), strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Path.unlink, "cannot be loaded: "),
        (lambda file: file.write_bytes(b""), "became shorter while it was loaded"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "became shorter while it was loaded"),
        (lambda file: file.write_bytes(file.read_bytes() + b"0"), "was changed while it was loaded"),
    ],
    ids=["gone", "empty", "shorter", "longer"],
)
def test_a_file_that_is_not_as_its_header_said_is_named_in_the_error(
    change: Callable[[Path], object], words: str, tmp_path: Path
):
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    files = inspect(ModelConfig(model=str(folder)))
    change(folder / "model.safetensors")
    with pytest.raises(ModelRefused, match=rf"model\.safetensors {words}"), FileSource(files):
        pass
