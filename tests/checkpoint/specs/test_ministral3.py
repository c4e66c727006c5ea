"""Ministral 3, and Mistral 3 with a part for images, are read as published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.hf_config import read_model
from app.checkpoint.spec import LayerSpec, QueryScale
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType
from tests.checkpoint.reading import assert_rejected, spec_of
from tests.checkpoint.specs.published_configs import MINISTRAL_3_8B

TEXT: dict[str, Any] = MINISTRAL_3_8B["text_config"]
ALONE = TEXT | {"architectures": ["Ministral3ForCausalLM"], "dtype": "bfloat16"}


def test_queries_grow_beyond_the_original_context():
    spec = spec_of(MINISTRAL_3_8B)
    assert spec.query_scale == QueryScale(16384, 0.1) and spec.max_position == 262144
    (rope,) = spec.ropes
    assert (rope.kind, rope.factor, rope.theta, rope.attention_factor) == ("yarn", 16.0, 1e6, 1.0)
    assert spec_of(ALONE) == replace(spec, architecture="Ministral3ForCausalLM")
    absent = {name: value for name, value in ALONE.items() if name not in ("rope_parameters", "head_dim")}
    assert spec_of(absent) == spec_of(ALONE), "transformers' defaults"
    plain = spec_of(ALONE | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert plain.query_scale is None
    assert set(spec_of(ALONE | {"sliding_window": 9}).layers) == {LayerSpec(9)}


def test_the_text_model_of_a_mistral_3_may_be_a_mistral():
    text = {name: value for name, value in TEXT.items() if name != "rope_parameters"} | {"model_type": "mistral"}
    spec = spec_of(MINISTRAL_3_8B | {"text_config": text | {"rope_theta": 1e9}})
    assert spec.query_scale is None and spec.ropes[0].theta == 1e9 and set(spec.layers) == {LayerSpec()}
    assert_rejected(
        MINISTRAL_3_8B | {"text_config": text | {"model_type": "qwen2"}}, "text_config: model_type", "qwen2"
    )


def test_quantized_weights_are_refused_by_name():
    quantized = MINISTRAL_3_8B | {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    assert_rejected(quantized, "quantization_config", "fp8", "unquantized")


def test_a_part_that_is_not_described_is_named():
    for text in (None, [], "text", 3):
        assert_rejected(MINISTRAL_3_8B | {"text_config": text}, "text_config", "object")


@pytest.mark.parametrize("has_head", [True, False])
@pytest.mark.parametrize(
    ("model", "head"), [("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")]
)
def test_the_text_model_is_found_under_each_of_its_names(model: str, head: str, has_head: bool):
    text = TEXT | {"num_hidden_layers": 1, "vocab_size": 7, "tie_word_embeddings": has_head}
    config = MINISTRAL_3_8B | {"text_config": text}
    stored = {}
    for name, shape in (
        spec_of(config | {"text_config": text | {"tie_word_embeddings": not has_head}}).tensor_shapes().items()
    ):
        place = name.replace("model.", model) if name.startswith("model.") else name.replace("lm_head.", head)
        num_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        stored[place] = StoredTensor(Path("x"), TensorType("BF16", 1, 2), shape, 0, num_bytes)
    opened, spec = read_model(Checkpoint(Path("model"), config, {}, stored, "0"))
    assert spec.tie_word_embeddings is not has_head, "whether there is an output layer counts"
    assert opened.tensors is not None and spec.tensor_shapes().keys() <= opened.tensors.keys()
