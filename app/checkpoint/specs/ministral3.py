"""Ministral 3, and the text models of Mistral 3, which have a part for images beside them."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, ModelSpec, QueryScale
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.llama import read_mistral
from app.checkpoint.specs.rope_fields import read_rope, rope_fields

_MAX_POSITION = 262144
_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def read_ministral3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Ministral 3 model: queries grow with the position beyond the original context."""
    config = fields.config
    if not (config.get("rope_parameters") or config.get("rope_scaling") or config.get("rope_theta")):
        fields = Fields({**config, "rope_parameters": _ROPE}, fields.where)
    rope = read_rope(fields, fields.integer("max_position_embeddings", _MAX_POSITION))
    spec = read_decoder(fields, given, max_position=_MAX_POSITION, kv_heads=8, head_dim=128, eps=1e-5, rope=rope)
    is_windowed = config.get("sliding_window") is not None
    window = fields.integer("sliding_window") if is_windowed else None
    return replace(spec, layers=(LayerSpec(window),) * spec.num_layers, query_scale=_read_query_scale(fields))


def read_mistral3(fields: Fields, given: Given) -> ModelSpec:
    """Read the text model of a Mistral 3: a Ministral 3, or a Mistral as in Mistral Small 3.1."""
    kind = fields.config.get("model_type")
    if kind == "ministral3":
        return read_ministral3(fields, given)
    if kind == "mistral":
        return read_mistral(fields, given)
    raise fields.rejection("model_type", f"is {kind!r:.80}; supported are ministral3 and mistral")


def _read_query_scale(fields: Fields) -> QueryScale | None:
    rope, beta = rope_fields(fields), "llama_4_scaling_beta"
    if rope.config.get(beta) in (None, 0):
        return None
    return QueryScale(rope.integer("original_max_position_embeddings"), rope.number(beta))
