"""The names of tensors in GGUF files, by their names in a Hugging Face checkpoint."""

from __future__ import annotations

_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_name(name: str) -> str:
    """Return the name in a GGUF file of a tensor that a Hugging Face checkpoint has under `name`."""
    if name in _ENDS:
        return _ENDS[name]
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    part, _, kind = part.rpartition(".")
    return f"blk.{layer}.{_PARTS[part]}.{kind}"
