"""The names of tensors in GGUF files, by their names in `ModelSpec.tensor_shapes`."""

from __future__ import annotations

from collections.abc import Mapping

from app.checkpoint.expert_names import ExpertNames
from app.checkpoint.tensor_names import TensorNames

GATE_UP_NAMES = TensorNames({"mlp.gate_proj": "mlp.gate_up_proj", "mlp.up_proj": "mlp.gate_up_proj"})
"""Of families whose MLPs have one tensor for both."""
EXPERT_NAMES = TensorNames(
    experts=ExpertNames(
        gate="mlp.experts.gate_proj.weight", up="mlp.experts.up_proj.weight", down="mlp.experts.down_proj.weight"
    )
)
"""Of families with experts: those of a layer are one tensor of each kind."""
NORMS_BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
"""The norms of a layer in most families; like all of these tables it has the names of a `BlockNorms`, in its order."""
NORMS_BEFORE_SEED = NORMS_BEFORE | {"post_attention_layernorm": "post_attention_norm"}
"""The same norms in Seed-OSS, where this name is not that of a norm of what attention adds."""
NORMS_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
NORMS_BOTH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


def stored_name(name: str, norms: Mapping[str, str] = NORMS_BEFORE) -> str:
    """Return the name in a GGUF file of a tensor of `ModelSpec.tensor_shapes`, also of one that fuses several.

    `norms` are the names of the norms of a layer.
    """
    if name in _ENDS:
        return _ENDS[name]
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    part, _, kind = part.rpartition(".")
    return f"blk.{layer}.{norms.get(part) or _PARTS[part]}.{kind}"
