"""Rotary embeddings that differ between layers that see everything and layers with a window (Gemma 3, OLMo 3)."""

from __future__ import annotations

from collections.abc import Sequence

from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, RopeSpec
from app.checkpoint.specs.rope_fields import read_rope

_FULL, _WINDOWED = "full_attention", "sliding_attention"


def read_layer_ropes(
    fields: Fields, position: int, *, theta: float, local_name: str, local_theta: float
) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotary embedding of layers that see everything, and of those with a window.

    transformers 5 has an object for each in `rope_parameters`. In older files `rope_theta` and `rope_scaling` are of
    the first, and the second has the base `local_name` and no scaling. `theta` and `local_theta` are the bases where
    none is given, `position` is the length that the config names.

    Raises:
        ModelRefused: see `read_rope`; or the objects are not there.
    """
    given = fields.config.get("rope_parameters")
    if not given:
        return read_rope(fields, position, theta=theta), RopeSpec(fields.number(local_name, local_theta, above=1.0))
    if not isinstance(given, dict) or any(not isinstance(given.get(kind) or {}, dict) for kind in (_FULL, _WINDOWED)):
        raise fields.rejection("rope_parameters", f"must have the objects {_FULL} and {_WINDOWED}")
    if not given.keys() & {_FULL, _WINDOWED}:
        raise fields.rejection(
            "rope_parameters", f"names neither {_FULL} nor {_WINDOWED}; it must have an object for each"
        )
    return (
        _read_one(fields, given, _FULL, position, theta),
        _read_one(fields, given, _WINDOWED, position, local_theta),
    )


def layers_of(
    windows: Sequence[int | None], full: RopeSpec, windowed: RopeSpec
) -> tuple[tuple[RopeSpec, ...], tuple[LayerSpec, ...]]:
    """Return the ropes of a model, and its layers; `windows` has the window of each."""
    ropes = (full,) if full == windowed else (full, windowed)
    last = len(ropes) - 1
    return ropes, tuple(LayerSpec(window, 0 if window is None else last) for window in windows)


def _read_one(fields: Fields, given: dict[str, object], kind: str, position: int, theta: float) -> RopeSpec:
    where = f"{fields.where}: rope_parameters: {kind}"
    return read_rope(Fields({"rope_parameters": given.get(kind) or {}}, where), position, theta=theta)
