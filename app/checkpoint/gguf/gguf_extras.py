"""Numbers that only some families have: multipliers, caps, scales of queries. Each function adds those of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.gguf.gguf_metadata import decimal
from app.checkpoint.gguf.gguf_rope import LOG_MULTIPLIER, ORIGINAL_CONTEXT
from app.checkpoint.spec import NO_ROPE, Activation, ModelSpec, QueryScale
from app.checkpoint.specs.gemma import embedding_scale

MULTIPLIERS = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
_ATTENTION_CAP, _LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
CAPS = (_ATTENTION_CAP, _LOGIT_CAP)
QUERY_KEYS = ("attention.temperature_scale", LOG_MULTIPLIER)
_LAYERS_OF_27B = {"Gemma2ForCausalLM": 46, "Gemma3ForCausalLM": 62}

Extras = Callable[[ModelSpec, Fields], ModelSpec]
"""Returns the spec with what the family has besides; raises ModelRefused for a value that is not allowed."""


def no_extras(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec as it is."""
    return spec


def add_granite(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with Granite's multipliers, and without a rotary embedding if the file says so."""
    given = {name: decimal(fields.number(name)) for name in MULTIPLIERS if fields.config.get(name)}
    if spec.dtype == "float16" and given.get("residual_scale", 1.0) != 1:  # see read_granite
        raise fields.rejection("residual_scale", "is not 1, which float16 cannot serve; choose --dtype bfloat16")
    return replace(
        spec,
        ropes=spec.ropes if fields.flag("rope.scaling.finetuned", True) else (NO_ROPE,),
        embedding_scale=given.get("embedding_scale", 1.0),
        residual_multiplier=given.get("residual_scale", 1.0),
        attention_scale=given.get("attention.scale"),
        logit_scale=1 / given.get("logit_scale", 1.0),
    )


def add_gemma(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with what all Gemmas have. The norms in a GGUF file are whole: 1 was added to their weights."""
    if spec.dtype == "float16":
        raise fields.rejection("dtype", "is float16, whose range is too small for a Gemma; choose --dtype bfloat16")
    # Queries are scaled by the width of a head, but in the models with 27 billion weights; files do not say so.
    is_27b = spec.num_layers == _LAYERS_OF_27B.get(spec.architecture)
    width = spec.hidden_size // spec.num_heads if is_27b else spec.head_dim
    return replace(
        spec,
        embedding_scale=embedding_scale(spec.hidden_size, spec.dtype),
        attention_scale=width**-0.5,
        activation=Activation.GELU_TANH,
    )


def add_gemma_2(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with Gemma 2's caps, which old files do not name."""
    return replace(
        add_gemma(spec, fields),
        attention_softcap=_cap(fields, _ATTENTION_CAP, 50.0),
        logit_softcap=_cap(fields, _LOGIT_CAP, 30.0),
    )


def add_gemma_3(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with Gemma 3's cap; the context that its files name is the scaled one."""
    return replace(
        add_gemma(spec, fields),
        logit_softcap=_cap(fields, _LOGIT_CAP),
        max_position=fields.integer("context_length"),
    )


def add_olmo_3(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec as that of OLMo 3 if it has windows; those of OLMo 2 have none, and the same architecture."""
    is_newer = any(layer.window for layer in spec.layers)
    return replace(spec, architecture="Olmo3ForCausalLM") if is_newer else spec


def add_ministral(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with Ministral 3's scale of queries at positions above the original context."""
    if not fields.config.get("attention.temperature_scale"):
        return spec
    beta = decimal(fields.number("attention.temperature_scale"))
    original = fields.integer(ORIGINAL_CONTEXT, fields.integer("context_length"))
    return replace(spec, query_scale=QueryScale(original, beta))


def _cap(fields: Fields, name: str, default: float | None = None) -> float | None:
    """Return a cap; 0 is none."""
    value = fields.config.get(name)
    if value is None:
        return default
    return None if value == 0 and not isinstance(value, bool) else decimal(fields.number(name))
