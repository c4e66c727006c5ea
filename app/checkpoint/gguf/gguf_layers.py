"""The differences of a model's layers in a GGUF file: which have a window, and by which rotary embedding each turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import NO_ROPE, LayerSpec, RopeSpec

WINDOW_PATTERN = "attention.sliding_window_pattern"
"""A number, or a list that is one also where all of its elements are the same."""
_WINDOW = "attention.sliding_window"
_WINDOWED_BASE = "rope.freq_base_swa"

Ropes = tuple[RopeSpec, RopeSpec]
"""The rotary embeddings of layers that see everything, and of layers with a window."""
SplitRopes = Callable[[Fields, RopeSpec], Ropes]
"""Returns both rotary embeddings of a model with windows; it gets that of the file's keys."""


def same_ropes(fields: Fields, rope: RopeSpec) -> Ropes:
    """Return the same rotary embedding twice, but for a base of its own that a file may name for windows."""
    return rope, replace(rope, theta=_windowed_base(fields, rope.theta))


def local_ropes(fields: Fields, rope: RopeSpec) -> Ropes:
    """Return Gemma 3's: layers with a window have a base of 10,000, which files do not name, and no scaling."""
    return rope, RopeSpec(_windowed_base(fields, 10_000.0))


def unscaled_ropes(fields: Fields, rope: RopeSpec) -> Ropes:
    """Return OLMo 3's: layers with a window have no scaling."""
    return rope, RopeSpec(_windowed_base(fields, rope.theta))


def windowed_ropes_only(fields: Fields, rope: RopeSpec) -> Ropes:
    """Return EXAONE 4's: layers that see everything have no rotary embedding."""
    return NO_ROPE, same_ropes(fields, rope)[1]


def read_windows(fields: Fields, num_layers: int, full_period: int, default: int = 0) -> tuple[int | None, ...]:
    """Return the window of each layer, None where a layer sees everything.

    Those are the layers that the file says, or else one of `full_period`, the last (0: none). `default` is the window
    where the file names none; 0 is no window.

    Raises:
        ModelRefused: a value that is not allowed.
    """
    window = fields.integer(_WINDOW, default, low=0)
    if not window:
        return (None,) * num_layers
    given = fields.config.get(WINDOW_PATTERN)
    if isinstance(given, tuple):
        if len(given) != num_layers or not set(given) <= {0, 1}:
            raise fields.rejection(
                WINDOW_PATTERN, f"is {given!r:.80}; it must say true or false for each of {num_layers} layers"
            )
        return tuple(window if is_windowed else None for is_windowed in given)
    period = fields.integer(WINDOW_PATTERN, full_period, low=0)
    return tuple(window if not period or (index + 1) % period else None for index in range(num_layers))


def make_layers(
    fields: Fields, windows: tuple[int | None, ...], rope: RopeSpec, split: SplitRopes
) -> tuple[tuple[RopeSpec, ...], tuple[LayerSpec, ...]]:
    """Return the rotary embeddings of a model and its layers.

    Raises:
        ModelRefused: a value that is not allowed.
    """
    if not any(windows):
        return (rope,), tuple(map(LayerSpec, windows))
    full, windowed = split(fields, rope)
    ropes = tuple(sorted(dict.fromkeys((full, windowed)), key=lambda rope: rope == NO_ROPE))
    return ropes, tuple(LayerSpec(window, ropes.index(windowed if window else full)) for window in windows)


def _windowed_base(fields: Fields, default: float) -> float:
    return fields.number(_WINDOWED_BASE, default, above=1.0)
