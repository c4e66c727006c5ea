"""GLM-4 of April 2025: norms before and after each block, neighbours in the first half of each head turn together."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import BlockNorms, ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder, read_head_dim
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.rope_fields import read_rope
from app.checkpoint.tensor_names import TensorNames

GLM4_NAMES = TensorNames(
    {
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
        "mlp.gate_proj": "mlp.gate_up_proj",
        "mlp.up_proj": "mlp.gate_up_proj",
    }
)
GLM4_DEFAULTS = {"partial_rotary_factor": 0.5}
"""transformers' values of fields that a config.json may lack, besides those in the reader."""
_MAX_POSITION, _HEAD_DIM = 131072, 128


def read_glm4(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a GLM-4 model."""
    position = fields.integer("max_position_embeddings", _MAX_POSITION)
    rope = read_rope(fields, position, head_dim=read_head_dim(fields, _HEAD_DIM))
    spec = read_decoder(
        fields,
        given,
        max_position=_MAX_POSITION,
        kv_heads=2,
        head_dim=_HEAD_DIM,
        eps=1.5625e-7,
        rope=replace(rope, has_neighbour_pairs=True),
    )
    return replace(spec, qkv_bias=fields.flag("attention_bias", True), block_norms=BlockNorms.BOTH)
