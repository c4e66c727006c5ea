"""Reads the rotary embedding of a config.json: `rope_parameters` (transformers 5), or `rope_theta` + `rope_scaling`."""

from __future__ import annotations

import math
from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import RopeSpec


def read_rope(fields: Fields, position: int, *, theta: float = 10000.0, head_dim: int | None = None) -> RopeSpec:
    """Read a rotary embedding; `position` is the length that the config names.

    It turns all numbers of a head, or, given `head_dim`, the share that the config names.

    Raises:
        ModelRefused: a kind of scaling that is not supported, or a value that is not allowed.
    """
    rope = rope_fields(fields)
    kind = rope_kind(rope)
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise fields.rejection(
            "rope_scaling",
            f"has the type {kind!r:.80}; supported are linear, llama3 and yarn, which keep cached keys valid",
        )
    if head_dim is not None:
        return replace(_read_whole(fields, rope, position, theta), rotary_dim=read_rotary_dim(fields, rope, head_dim))
    if rotary_factor(fields, rope) not in (None, 1, 1.0):
        raise fields.rejection(
            "partial_rotary_factor", "is not 1; partial rotary embeddings are not supported in this architecture"
        )
    return _read_whole(fields, rope, position, theta)


def _read_whole(fields: Fields, rope: Fields, position: int, theta: float) -> RopeSpec:
    kind, base = rope_kind(rope), rope_theta(fields, rope, theta)
    if kind == "default":
        return RopeSpec(base)
    original = rope.integer(
        "original_max_position_embeddings", fields.integer("original_max_position_embeddings", position)
    )
    factor = rope.number("factor", position / original if kind == "yarn" else None, high=2**31 / original)
    if kind == "linear":
        return RopeSpec(base, "linear", factor, original)
    if kind == "llama3":
        low = rope.number("low_freq_factor")
        return RopeSpec(base, "llama3", factor, original, low, rope.number("high_freq_factor", above=low))
    return RopeSpec(
        base, "yarn", factor, original,
        beta_fast=rope.number("beta_fast", 32.0), beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor), truncate=rope.flag("truncate", True),
    )  # fmt: skip


def rope_fields(fields: Fields) -> Fields:
    """Return the object that describes the rotary embedding; an empty one if there is none."""
    raw = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(raw, dict):
        raise fields.rejection("rope_scaling", f"is {raw!r:.80}; it must be an object")
    return Fields(raw, fields.where + ": rope_parameters")


def rope_kind(rope: Fields) -> object:
    """Return the kind of scaling, as it is named in the file."""
    return rope.config.get("rope_type", rope.config.get("type", "default"))


def rope_theta(fields: Fields, rope: Fields, default: float = 10000.0) -> float:
    """Return the base of the frequencies."""
    return rope.number("rope_theta", fields.number("rope_theta", default, above=1.0), above=1.0)


def rotary_factor(fields: Fields, rope: Fields) -> object:
    """Return the share of a head's numbers that turn, as it stands in the file; None if nothing stands there."""
    return rope.config.get("partial_rotary_factor", fields.config.get("partial_rotary_factor", 1.0))


def read_rotary_dim(fields: Fields, rope: Fields, head_dim: int) -> int | None:
    """Return how many of a head's numbers turn; None: all.

    Raises:
        ModelRefused: it is an odd number, or none.
    """
    name = "partial_rotary_factor"
    share = Fields({name: rotary_factor(fields, rope)}, fields.where).number(name, 1.0, high=1.0)
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise fields.rejection(name, f"is {share:g}; of {head_dim} numbers in a head an even number must turn")
    return None if rotary_dim == head_dim else rotary_dim


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    """Return the scale of cos and sin (YaRN, arXiv 2309.00071, section 3.4; mscale as in DeepSeek's configs)."""

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.config.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.config.get("mscale") and rope.config.get("mscale_all_dim"):
        return mscale(rope.number("mscale")) / mscale(rope.number("mscale_all_dim"))
    return mscale(1.0)
