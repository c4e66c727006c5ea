"""EXAONE 4: norms only of what blocks add, and of each query and key head; layers without windows may not turn."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import NO_ROPE, BlockNorms, LayerSpec, ModelSpec, QKNorm
from app.checkpoint.specs.decoder_fields import mixed_types, read_decoder, read_windows
from app.checkpoint.specs.family import Given


def read_exaone4(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of an EXAONE 4 model. With windows, only layers that have one have a rotary embedding."""
    spec = read_decoder(fields, given, max_position=2048, kv_heads=32, eps=1e-5)
    spec = replace(spec, block_norms=BlockNorms.AFTER, qk_norm=QKNorm.HEADS)
    if fields.config.get("sliding_window", 4096) is None:
        return spec
    types = _types(fields, spec.num_layers) if fields.config.get("layer_types") is None else []
    windows = read_windows(fields, spec.num_layers, fields.integer("sliding_window", 4096), types)
    layers = tuple(LayerSpec(window, int(window is None)) for window in windows)
    return replace(spec, ropes=(*spec.ropes, NO_ROPE), layers=layers)


def _types(fields: Fields, num_layers: int) -> list[str]:
    """Return the types of layers by `sliding_window_pattern`: a period, or a letter, L or G, for each layer of one."""
    pattern = fields.config.get("sliding_window_pattern", 4)
    if not isinstance(pattern, str):
        return mixed_types(num_layers, fields.integer("sliding_window_pattern", 4))
    if not pattern or set(pattern) - set("LG"):
        raise fields.rejection("sliding_window_pattern", f"is {pattern!r:.80}; it must be a number, or letters L and G")
    letters = [pattern[layer % len(pattern)] for layer in range(num_layers - 1)] + ["G"]
    return ["sliding_attention" if letter == "L" else "full_attention" for letter in letters]
