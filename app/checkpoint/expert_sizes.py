"""What mixtures of experts take and read: the part that computes one token, and the memory for rows of experts."""

from __future__ import annotations

import math

from app.checkpoint.expert_names import EXPERTS
from app.checkpoint.sizes import EMBEDDING, FLOAT_BYTES, HEAD, StoredType, decoded, kept_bytes
from app.checkpoint.spec import ModelSpec

_GAP = 32  # as in kernels/cpu/expert_ops.py, which needs torch
_INT32_BYTES, _INT64_BYTES = 4, 8


def active_parameters(spec: ModelSpec) -> int:
    """Return the number of weights without those of the experts that do not compute a token."""
    share, shapes = _share(spec), spec.tensor_shapes().items()
    return round(sum(math.prod(shape) * (share if EXPERTS in name else 1.0) for name, shape in shapes))


def active_bytes(spec: ModelSpec, quantization: str | None, stored_type: StoredType = decoded) -> int:
    """Return the bytes of the weights that a step of one token reads; the arguments are those of `kept_bytes`.

    That is all but those of the experts that do not compute it, and but the embedding where the output layer is another
    matrix: the step reads a row of it.
    """
    share, sizes = _share(spec), kept_bytes(spec, quantization, stored_type)
    if HEAD in sizes:
        del sizes[EMBEDDING]
    return round(sum(size * (share if EXPERTS in name else 1.0) for name, size in sizes.items()))


def pair_bytes(spec: ModelSpec, num_rows: int, item_bytes: int) -> int:
    """Return the bytes beside the arena that the CPU's kernels need for experts, in steps of so many padded rows.

    Activations have `item_bytes`; a test compares the bytes with those that are allocated.
    """
    if spec.experts is None:
        return 0
    num_pairs = num_rows * spec.experts.per_token
    products = num_rows * _stride(3 * (spec.experts.count + spec.experts.has_shared_gate)) * FLOAT_BYTES
    rows = num_pairs * _stride(spec.hidden_size) * (item_bytes + FLOAT_BYTES)
    return products + rows + -(-num_pairs // _GAP) * _GAP * (_INT32_BYTES + _INT64_BYTES)


def _share(spec: ModelSpec) -> float:
    return 1.0 if spec.experts is None else spec.experts.per_token / spec.experts.count


def _stride(width: int) -> int:
    return -(-(width + _GAP) // _GAP) * _GAP
