"""Bytes of the activations that the CPU's kernels quantize for products with quantized weights. Torch-free.

They are kept beside the activations themselves: a copy of each input in groups of 32, of one byte or two. The
kernels have these types and sizes in packers.py and native_ops.py; a test compares the bytes.
"""

from __future__ import annotations

from app.checkpoint.expert_names import EXPERTS
from app.checkpoint.sizes import ROUTERS, StoredType
from app.checkpoint.spec import ModelSpec

_GROUP = 32
_GROUP_BYTES = 16  # beside the integers: a scale and sums
_LINE = 64  # rows begin at its multiples, one line apart
_TWO_BYTES = ("int4", "Q4_1", "Q5_1")
_TWO_BYTES_IN_THE_OUTPUT_LAYER = (*_TWO_BYTES, "int8", "Q8_0")
_ATTENTION_AND_MLP = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def quantized_bytes(
    spec: ModelSpec, quantization: str | None, stored_type: StoredType, num_rows: int, num_logit_rows: int
) -> int:
    """Return the bytes for steps of so many padded rows; the other arguments are those of `sizes.weight_bytes`."""
    copies: set[tuple[str, int, int, int]] = set()  # input, rows, width, planes
    for name, shape in spec.tensor_shapes().items():
        stored = stored_type(name)
        kind = quantization or (stored.name if stored is not None else None)
        if kind is None or len(shape) == 1 or name.endswith(ROUTERS):
            continue
        if name == "lm_head.weight" or (name == "model.embed_tokens.weight" and spec.tie_word_embeddings):
            num_planes = 2 if kind in _TWO_BYTES_IN_THE_OUTPUT_LAYER else 1
            copies.add(("last", num_logit_rows, shape[1], num_planes))
        elif name != "model.embed_tokens.weight":
            module = name.split(".")[-2]
            source = "hidden" if module in _ATTENTION_AND_MLP else module
            count = num_rows
            if spec.experts is not None and EXPERTS in name:
                source, count = f"{source} of experts", num_rows * spec.experts.per_token
            copies.add((source, count, shape[1], 2 if kind in _TWO_BYTES else 1))
    return sum(rows * _row_bytes(width, planes) for _, rows, width, planes in copies)


def _row_bytes(width: int, planes: int) -> int:
    groups = -(-width // _GROUP)
    return -(-planes * groups * _GROUP // _LINE) * _LINE + _LINE + groups * _GROUP_BYTES
