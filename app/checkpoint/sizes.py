"""Memory that a model needs, from its spec alone and without torch."""

from __future__ import annotations

import math
from collections.abc import Callable

from app.checkpoint.checkpoint_folder import ITEM_BYTES
from app.checkpoint.spec import ROUTER, SHARED_GATE, ModelSpec
from app.checkpoint.tensor_types import DTYPES, TensorType

# Matrices that are quantized when they are loaded: bytes of a group of 32 weights with its scale, and with its minimum.
_GROUP = 32
_GROUP_BYTES = {"int8": 34, "int4": 20}
HEAD = "lm_head.weight"
_HEAD_QUANTIZATION = "int8"  # of every quantized model

StoredType = Callable[[str], TensorType | None]
"""Returns the type of a matrix, by its name, that is used as its file stores it; None for others."""

EMBEDDING = "model.embed_tokens.weight"
_LAST_NORM = "model.norm.weight"
ROUTERS = (f"{ROUTER}.weight", f"{SHARED_GATE}.weight")
FLOAT_BYTES = 4


def decoded(name: str) -> None:
    """Return the StoredType of files without quantized weights, and of a device that decodes them."""


def item_bytes(spec: ModelSpec) -> int:
    """Return the bytes of one weight that is not quantized."""
    return ITEM_BYTES[DTYPES[spec.dtype]]


def weight_bytes(spec: ModelSpec, quantization: str | None, stored_type: StoredType = decoded) -> int:
    """Return the bytes of all weights in memory, see `kept_bytes`."""
    return sum(kept_bytes(spec, quantization, stored_type).values())


def kept_bytes(spec: ModelSpec, quantization: str | None, stored_type: StoredType = decoded) -> dict[str, int]:
    """Return the bytes of each tensor in memory, by its name in the checkpoint; `quantization` as in the setting.

    A quantized model keeps its embedding unquantized; with tied embeddings the output layer is a quantized copy. The
    output layer is int8 in an int4 model too.
    """
    sizes = {}
    for name, shape in spec.tensor_shapes().items():
        is_router = name.endswith(ROUTERS)
        if len(shape) > 1 and not is_router and (kept := stored_type(name)):
            sizes[name] = kept.kept_bytes(math.prod(shape))
            continue
        is_float = is_router or _is_changed_norm(spec, name)
        plain = math.prod(shape) * (FLOAT_BYTES if is_float else item_bytes(spec))
        if quantization is None or len(shape) == 1 or is_router:
            sizes[name] = plain
        elif name == EMBEDDING:
            sizes[name] = plain + (_quantized(shape, _HEAD_QUANTIZATION) if spec.tie_word_embeddings else 0)
        else:
            sizes[name] = _quantized(shape, _HEAD_QUANTIZATION if name == HEAD else quantization)
    return sizes


def kv_bytes_per_token(spec: ModelSpec, kv_cache_dtype: str) -> int:
    """Return the bytes of one token's keys and values in all layers; `kv_cache_dtype` as in the setting."""
    head = spec.head_dim * kv_item_bytes(spec, kv_cache_dtype) + kv_scale_bytes(kv_cache_dtype)
    return 2 * spec.num_layers * spec.num_kv_heads * head


def kv_item_bytes(spec: ModelSpec, kv_cache_dtype: str) -> int:
    """Return the bytes of one number of a key or a value."""
    return item_bytes(spec) if kv_cache_dtype == "auto" else 1


def kv_scale_bytes(kv_cache_dtype: str) -> int:
    """Return the bytes of the scale at the end of a key or value; 0 if there is none."""
    return 4 if kv_cache_dtype == "int8" else 0


def _is_changed_norm(spec: ModelSpec, name: str) -> bool:
    """Return whether a tensor is a norm that is kept in float32, because loading it changes its numbers."""
    return name.endswith("norm.weight") and bool(spec.norm_offset or (name == _LAST_NORM and spec.logit_scale != 1))


def _quantized(shape: tuple[int, ...], quantization: str) -> int:
    rows, columns = shape
    return rows * -(-columns // _GROUP) * _GROUP_BYTES[quantization]
