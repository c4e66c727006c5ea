"""Scales of an FP8 KV cache: one for the keys and one for the values of each layer and head, folded into the weights.

A number of e4m3 has three bits behind its first one, between 2^-6 and 448. So a scale only has to move the keys of a
head into that range, and it may be a power of two, which multiplies weights without rounding. What computes the keys is
divided by the scale of the keys, and what computes the queries that meet them is multiplied by it; likewise what
computes the values, and what reads the sums of values. So kernels know nothing of scales, and no step takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.model_files import ModelFiles
from app.checkpoint.spec import ModelSpec
from app.checkpoint.stored_tensor import StoredTensor
from app.kernels.ops import LinearWeight, Weight
from app.models.file_source import FileSource
from app.models.weights import DecoderWeights

E4M3_MAX = 448.0
HEADROOM = 4.0
"""Other texts may have keys and values that are larger than those of the calibration by this factor."""
# Below 2^-5 there is nothing to gain, and the weights of a float16 model would be rounded.
MIN_EXPONENT, MAX_EXPONENT = -5, 15
# By the tools that write checkpoints: compressed-tensors and vLLM, ModelOpt, AutoFP8, and one for both in older ones.
_NAMES = {
    "k": ("self_attn.k_scale", "self_attn.attn.k_scale", "self_attn.k_proj.k_scale", "self_attn.k_proj.output_scale"),
    "v": ("self_attn.v_scale", "self_attn.attn.v_scale", "self_attn.v_proj.v_scale", "self_attn.v_proj.output_scale"),
}
_FOR_BOTH = ("self_attn.kv_scale",)


@dataclass(frozen=True, slots=True)
class KVScales:
    """Powers of two (float32, on the host): the cache holds key / scale and value / scale. Shape [layers, kv heads]."""

    keys_LG: Tensor
    values_LG: Tensor

    @classmethod
    def covering(cls, keys_LG: Tensor, values_LG: Tensor) -> KVScales:
        """Return the least powers of two that are not below these scales."""

        def powers(scales: Tensor) -> Tensor:
            return torch.exp2(torch.ceil(torch.log2(scales.double())).clamp(MIN_EXPONENT, MAX_EXPONENT)).float()

        return cls(powers(keys_LG), powers(values_LG))

    @classmethod
    def for_largest(cls, keys_LG: Tensor, values_LG: Tensor) -> KVScales:
        """Return scales for keys and values whose largest absolute numbers in a calibration are these."""
        return cls.covering(keys_LG * (HEADROOM / E4M3_MAX), values_LG * (HEADROOM / E4M3_MAX))

    @torch.inference_mode()
    def fold(self, weights: DecoderWeights, spec: ModelSpec) -> None:
        """Change `weights` so that keys and values come out divided by their scales, and attention as before."""
        group, width = spec.num_heads // spec.num_kv_heads, spec.head_dim
        for layer, keys_G, values_G in zip(weights.layers, self.keys_LG, self.values_LG, strict=True):
            heads = torch.cat([keys_G.repeat_interleave(group), 1 / keys_G])  # queries, then keys
            by_projection = heads if layer.qk_norm is None else torch.ones_like(heads)
            if layer.qk_norm is not None:  # a norm would undo what happens before it
                layer.qk_norm.view(-1, width).mul_(heads.to(layer.qk_norm)[:, None])
            _scale_rows(layer.qkv, torch.cat([by_projection, 1 / values_G]).repeat_interleave(width))
            o = _plain(layer.o).weight
            o.mul_(values_G.repeat_interleave(group * width).to(o))


def has_kv_scales(files: ModelFiles) -> bool:
    """Return whether a model's files contain scales, so that none are calibrated."""
    tensors = files.tensors or {}
    return any(name is not None for kind in _NAMES for name in _names(tensors, kind, files.spec.num_layers))


def read_kv_scales(files: ModelFiles) -> KVScales | None:
    """Return the scales that a model's files contain, rounded up to powers of two; None if there are none.

    Raises:
        ModelRefused: there are scales of some layers only, or one that is not a positive number or of another shape.
    """
    tensors, spec = files.tensors or {}, files.spec
    names = {kind: list(_names(tensors, kind, spec.num_layers)) for kind in _NAMES}
    found = [name for each in names.values() for name in each if name is not None]
    if not found:
        return None
    if len(found) < 2 * spec.num_layers:
        raise rejected(
            f"{files.path} has scales of the KV cache for some layers only, such as {found[0]}; "
            "download the model again, or leave out --kv-cache-dtype fp8."
        )
    with FileSource(files) as source:
        keys_LG, values_LG = (
            torch.stack([_read(source, tensors[name], name, spec.num_kv_heads) for name in each if name is not None])
            for each in names.values()
        )
    return KVScales.covering(keys_LG, values_LG)


def _names(tensors: Mapping[str, StoredTensor], kind: str, num_layers: int) -> Iterator[str | None]:
    """Yield the name of each layer's scale."""
    for layer in range(num_layers):
        names = [f"model.layers.{layer}.{name}" for name in (*_NAMES[kind], *_FOR_BOTH)]
        yield next((name for name in names if name in tensors), None)


def _read(source: FileSource, entry: StoredTensor, name: str, num_kv_heads: int) -> Tensor:
    """Return a layer's scales by head; most checkpoints have one for all heads."""
    count = math.prod(entry.shape)
    if count not in (1, num_kv_heads) or entry.type.name not in ("F32", "BF16", "F16"):
        raise rejected(
            f"{entry.file}: {name} has type {entry.type.name} and shape {list(entry.shape)}; a scale of the KV cache "
            f"is a floating-point number, or one for each of {num_kv_heads} heads."
        )
    scales_G = source.read_flat(name)
    if not bool(((scales_G > 0) & scales_G.isfinite()).all()):
        raise rejected(f"{entry.file}: {name} is {scales_G.tolist()}; a scale of the KV cache is a positive number.")
    return scales_G.expand(num_kv_heads)


def _scale_rows(weight: Weight, factors_X: Tensor) -> None:
    linear = _plain(weight)
    linear.weight.mul_(factors_X.to(linear.weight)[:, None])
    if linear.bias is not None:
        linear.bias.mul_(factors_X.to(linear.bias))


def _plain(weight: Weight) -> LinearWeight:
    assert isinstance(weight, LinearWeight), "an FP8 cache is a GPU's, whose weights are not packed"
    return weight
