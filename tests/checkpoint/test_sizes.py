"""The sizes computed before a model is loaded equal those of the loaded tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.inspection import inspect
from app.checkpoint.sizes import kept_bytes, kv_bytes_per_token, weight_bytes
from app.checkpoint.spec import QKNorm
from app.config.settings import ModelConfig
from app.kernels.cpu.library import load_library
from app.kernels.cpu.packers import PanelPacker
from app.models.file_source import FileSource
from app.models.loader import DummySource, load_weights
from tests.checkpoint.reading import read_spec
from tests.checkpoints import ARCHITECTURES, tiny
from tests.gguf_writer import model_fields, stored_tensors, text_fields, write_gguf

# Multiples of what panels are made of, so that nothing is padded.
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "head_dim": 32, "num_attention_heads": 4}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_take_the_computed_number_of_bytes(tied: bool, quantization: str | None, dtype: str):
    folder = tiny("Llama", tie_word_embeddings=tied, torch_dtype=dtype, **SHAPE)
    spec = read_spec(Checkpoint.open(folder, with_weights=False))
    weights = load_weights(spec, DummySource(0), packer=PanelPacker(quantization))
    assert weights.num_bytes == weight_bytes(spec, quantization)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_unquantized_weights_take_their_number_times_their_width(architecture: str, tied: bool):
    spec = read_spec(Checkpoint.open(tiny(architecture, tie_word_embeddings=tied), with_weights=False))
    assert weight_bytes(spec, None) == 4 * spec.num_parameters() == sum(kept_bytes(spec, None).values())
    kept = load_weights(spec, DummySource(0)).num_bytes
    # Each head has its own copy of the norm of queries or keys.
    copies = spec.num_layers * (spec.num_heads + spec.num_kv_heads - 2) * spec.head_dim
    copies *= spec.qk_norm is QKNorm.HEADS
    assert kept == weight_bytes(spec, None) + 4 * copies


def test_an_int8_cache_stores_a_scale_after_each_head():
    spec = read_spec(Checkpoint.open(tiny("Qwen2")))
    assert kv_bytes_per_token(spec, "auto") == 2 * 2 * 2 * 16 * 4
    assert kv_bytes_per_token(spec, "int8") == 2 * 2 * 2 * (16 + 4)


def test_an_fp8_cache_takes_a_byte_for_each_number_and_no_scales():
    spec = read_spec(Checkpoint.open(tiny("Llama"), with_weights=False))
    assert kv_bytes_per_token(spec, "fp8") == 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_0", "F16"])
def test_weights_that_are_used_as_stored_take_the_computed_number_of_bytes(kind: str, tied: bool, tmp_path: Path):
    folder = tiny("Llama", tie_word_embeddings=tied, **SHAPE)
    tensors = stored_tensors(folder, "Llama", kind)
    tensors["blk.0.attn_v.weight"] = ("F16", tensors["blk.0.attn_v.weight"][1])
    file = write_gguf(tmp_path / "m.gguf", model_fields(folder, "Llama") | text_fields(folder), tensors)
    files = inspect(ModelConfig(model=str(file), dtype="bfloat16"))
    spec = files.spec
    with FileSource(files) as source:
        weights = load_weights(spec, source, packer=PanelPacker(None, load_library()))
    assert weights.num_bytes == weight_bytes(spec, None, files.stored_type)
    assert (weights.num_bytes < weight_bytes(spec, None)) == (kind != "F16")
