"""The fields of a config.json that all families of decoders have."""

from __future__ import annotations

from app.checkpoint.fields import Fields
from app.checkpoint.spec import Activation, LayerSpec, ModelSpec, QKNorm, RopeSpec
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.rope_fields import read_rope

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


def read_decoder(
    fields: Fields,
    given: Given,
    *,
    max_position: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    eps: float = 1e-6,
    tied: bool = False,
    rope: RopeSpec | None = None,
    activation: str = "hidden_act",
) -> ModelSpec:
    """Read a model without biases and norms of queries and keys, whose layers are all alike and see everything.

    The arguments are transformers' defaults of fields that a config.json may lack; `rope` is one that is read already,
    `activation` the name of that field.

    Raises:
        ModelRefused: a field is missing, or has a value that is not supported.
    """
    function = fields.config.get(activation, "silu")
    if not isinstance(function, str) or function not in _ACTIVATIONS:
        raise fields.rejection(activation, f"is {function!r:.80}; supported are {', '.join(_ACTIVATIONS)}")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", kv_heads or heads)
    if heads % num_kv_heads:
        raise fields.rejection("num_key_value_heads", f"is {num_kv_heads}; it must divide num_attention_heads, {heads}")
    width = read_head_dim(fields, head_dim)
    position = fields.integer("max_position_embeddings", max_position)
    rope = rope or read_rope(fields, position)
    # A config of another kind already contains the scaled length.
    scaled = int(rope.original_max_position * rope.factor) if rope.kind in ("linear", "yarn") else 0
    return ModelSpec(
        architecture=fields.config["architectures"][0],
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=num_kv_heads,
        head_dim=width,
        rms_norm_eps=fields.number("rms_norm_eps", eps),
        ropes=(rope,),
        max_position=max(position, scaled),
        tie_word_embeddings=fields.flag("tie_word_embeddings", tied),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=QKNorm.NONE,
        layers=(LayerSpec(),) * fields.integer("num_hidden_layers", high=10_000),
        dtype=given.dtype,
        eos_token_ids=given.eos_token_ids,
        defaults=given.defaults,
        activation=_ACTIVATIONS[function],
    )


def read_head_dim(fields: Fields, default: int | None = None) -> int:
    """Return the width of a head."""
    plain = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", default or plain, high=4096)
    if head_dim % 2:
        raise fields.rejection("head_dim", f"is {head_dim}; it must be even")
    return head_dim


def read_windows(fields: Fields, num_layers: int, window: int | None, default: list[str]) -> tuple[int | None, ...]:
    """Return the window of each layer: `window` where `layer_types`, or else `default`, says sliding_attention."""
    types = fields.config.get("layer_types")
    types = default if types is None else types
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in [*known] for kind in types):
        raise fields.rejection("layer_types", f"must name {num_layers} layers, sliding_attention or full_attention")
    return tuple(known[kind] for kind in types)


def mixed_types(num_layers: int, period: int) -> list[str]:
    """Return the type of each layer where the last of every `period` layers sees everything, and others a window."""
    return ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(num_layers)]
