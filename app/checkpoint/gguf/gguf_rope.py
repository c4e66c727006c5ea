"""Reads the rotary embedding of a GGUF file: its keys, and the tensors with divisors of the frequencies."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import replace

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.fields import Fields
from app.checkpoint.spec import RopeSpec
from app.checkpoint.stored_tensor import StoredTensor

ROPE_FREQS = "rope_freqs.weight"
"""Llama 3's scaling, computed by who wrote the file."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""Longrope's divisors for texts up to the original length, and for longer ones."""
ORIGINAL_CONTEXT = "rope.scaling.original_context_length"
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_TYPE = "rope.scaling.type"
_FACTORS = ("rope.scaling.factor", "rope.scale_linear")  # the second is the older name


def read_gguf_rope(fields: Fields, tensors: Mapping[str, StoredTensor], head_dim: int) -> RopeSpec:
    """Read a rotary embedding that turns all numbers of a head.

    Raises:
        ModelRefused: a kind of scaling that is not supported, or a value that is not allowed.
    """
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.rejection("rope.dimension_count", f"is not {head_dim}, the size of a head; this is not supported")
    return _read_scaled(fields, tensors, head_dim)


def read_gguf_partial_rope(fields: Fields, tensors: Mapping[str, StoredTensor], head_dim: int) -> RopeSpec:
    """Read GLM-4's rotary embedding: it may turn a part of a head, and turns neighbours together; raises as above."""
    rotary_dim = _rotary_dim(fields, head_dim)
    rope = _read_scaled(fields, tensors, rotary_dim)
    return replace(rope, rotary_dim=None if rotary_dim == head_dim else rotary_dim, has_neighbour_pairs=True)


def _read_scaled(fields: Fields, tensors: Mapping[str, StoredTensor], rotary_dim: int) -> RopeSpec:
    theta, context = _theta(fields), fields.integer("context_length")
    attention = fields.number("rope.scaling.attn_factor", 1.0)
    kind = _kind(fields, ("none", "linear", "yarn"))
    if ROPE_FREQS in tensors:
        if kind != "none":
            raise fields.rejection(_TYPE, f"is {kind}, beside the tensor {ROPE_FREQS}; only one may be")
        divisors = _read_divisors(ROPE_FREQS, tensors[ROPE_FREQS], rotary_dim // 2)
        return RopeSpec(theta, "divisors", divisors=divisors, attention_factor=attention)
    if kind == "none":
        return RopeSpec(theta, attention_factor=attention)
    original = fields.integer(ORIGINAL_CONTEXT, context)
    factor = fields.number(_factor_key(fields), high=2**31 / original)
    if kind == "linear":
        return RopeSpec(theta, kind, factor, original, attention_factor=attention)
    if fields.number("rope.scaling.yarn_ext_factor", 1.0) != 1:
        raise fields.rejection("rope.scaling.yarn_ext_factor", "is not 1; this is not supported")
    return RopeSpec(
        theta, kind, factor, original,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention * _yarn_attention_factor(fields, factor),
    )  # fmt: skip


def read_gguf_longrope(
    fields: Fields, tensors: Mapping[str, StoredTensor], head_dim: int, max_model_len: int | None
) -> RopeSpec:
    """Read Phi's rotary embedding: it may turn a part of a head, and have longrope's divisors; raises as above.

    Which divisors are taken depends on the setting `max_model_len`, as for a Hugging Face folder.
    """
    rotary_dim = _rotary_dim(fields, head_dim)
    plain = RopeSpec(
        _theta(fields),
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        attention_factor=fields.number("rope.scaling.attn_factor", 1.0),
    )
    kind, names = _kind(fields, ("none", "longrope")), (SHORT_FACTORS, LONG_FACTORS)
    if kind == "longrope" and _is_scaled(fields):
        raise fields.rejection(_factor_key(fields), "is not 1, beside longrope; this is not supported")
    if kind == "none" and not any(name in tensors for name in names):
        return plain
    for name in names:
        if name not in tensors:
            raise fields.rejection("rope.scaling", f"needs the tensor {name}, which is missing; download it again")
    divisors = {name: _read_divisors(name, tensors[name], rotary_dim // 2) for name in names}
    context = fields.integer("context_length")
    original = fields.integer(ORIGINAL_CONTEXT, context)
    is_long = (max_model_len or context) > original
    return replace(
        plain,
        kind="divisors",
        original_max_position=original,
        divisors=divisors[LONG_FACTORS if is_long else SHORT_FACTORS],
    )


def _yarn_attention_factor(fields: Fields, factor: float) -> float:
    """Return the scale of cos and sin: the one that a model's config.json named, or else that of the factor.

    llama.cpp's converter copies `attention_factor` of a config.json; 1 stands for none in llama.cpp.
    """

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = fields.number("rope.scaling.yarn_attn_factor", 1.0)
    if given != 1:
        return given
    return mscale(1.0) / (mscale(fields.number(LOG_MULTIPLIER)) if fields.config.get(LOG_MULTIPLIER) else 1.0)


def _theta(fields: Fields) -> float:
    return fields.number("rope.freq_base", 10000.0, above=1.0)


def _rotary_dim(fields: Fields, head_dim: int) -> int:
    """Return how many numbers of a head turn."""
    rotary_dim = fields.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if rotary_dim % 2:
        raise fields.rejection("rope.dimension_count", f"is {rotary_dim}; it must be even")
    return rotary_dim


def _kind(fields: Fields, supported: tuple[str, ...]) -> str:
    """Return the kind of scaling. As in llama.cpp, a factor without a type is linear scaling."""
    kind = fields.config.get(_TYPE, "linear" if _is_scaled(fields) else "none")
    if not isinstance(kind, str) or kind not in supported:
        allowed = f"{', '.join(supported[:-1])} and {supported[-1]}"
        default = "" if _TYPE in fields.config else f", because there is a {_factor_key(fields)} and no type"
        raise fields.rejection(_TYPE, f"is {kind!r:.40}{default}; supported are {allowed}")
    return kind


def _factor_key(fields: Fields) -> str:
    """Return which key has the factor."""
    return next((key for key in _FACTORS if fields.config.get(key) is not None), _FACTORS[0])


def _is_scaled(fields: Fields) -> bool:
    """Return whether there is a factor that changes something; 0 is the same as none."""
    return fields.config.get(_factor_key(fields)) not in (None, 0, 1)


def _read_divisors(name: str, tensor: StoredTensor, count: int) -> tuple[float, ...]:
    """Read the divisors of the rotary frequencies, one for each pair of numbers that turns."""
    if tensor.shape != (count,) or tensor.type.name != "F32":
        raise rejected(
            f"{tensor.file}: {name} has type {tensor.type.name} and shape {list(tensor.shape)}; it must be F32 and "
            f"[{count}]."
        )
    try:
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.begin)
            raw = stream.read(4 * count)
    except OSError as error:
        raise rejected(f"{tensor.file} cannot be read: {error.strerror}; download the model again.") from None
    values: tuple[float, ...] = struct.unpack(f"<{count}f", raw) if len(raw) == 4 * count else ()
    if not values or not all(0 < value < math.inf for value in values):
        raise rejected(f"{tensor.file}: {name} holds other values than positive numbers; download it again.")
    return values
