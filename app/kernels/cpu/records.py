"""The records of a native step, field by field as in native/record.h; a test compares their sizes with the library's.

Engine thread only. A record holds bare addresses: whoever makes one keeps its tensors alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum

import torch
from torch import Tensor


class Code(IntEnum):
    """The kind of a record."""

    EMBED = 0
    NORM = 1
    ADD = 2
    GATHER = 3
    QUANTIZE = 4
    GATE = 5
    LINEAR = 6
    ROTATE = 7
    ATTENTION = 8
    ATTENTION_MERGE = 9
    SAMPLE = 10
    PACK = 11
    SOFTCAP = 12
    ROUTE = 13
    EXPERTS = 14
    COMBINE = 15


class Type(IntEnum):
    """How a value is stored; the last ones are panels of quantized weights."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3
    INT4 = 4
    Q4_0 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10


class Rows(IntEnum):
    """Which rows a record works on: the step's tokens, those whose logits are wanted, or pairs of tokens and experts.

    PAIRS is for one expert of each token, one more for each other.
    """

    TOKENS = 0
    OUTPUTS = 1
    PAIRS = 2


class Epilogue(IntEnum):
    """The use that a product makes of its sums: store them, add them to `out`, or store activation(gate) · up."""

    STORE = 0
    ACCUMULATE = 1
    GATED = 2


class Activation(IntEnum):
    """The function that a gate goes through."""

    SILU = 0
    GELU = 1


TYPES = {
    torch.float32: Type.FLOAT32,
    torch.float16: Type.FLOAT16,
    torch.bfloat16: Type.BFLOAT16,
    torch.int8: Type.INT8,
}


class Record(ctypes.Structure):
    """One operation of a step."""

    _fields_ = (("code", c_int32), ("rows", c_int32), ("fields", c_void_p))


class Matrix(ctypes.Structure):
    """Rows of values; `stride` counts elements from one row to the next."""

    _fields_ = (("data", c_void_p), ("stride", c_int64), ("type", c_int32), ("padding", c_int32))

    @classmethod
    def of(cls, tensor: Tensor) -> Matrix:
        """Describe `tensor` [rows, ...], whose rows are contiguous."""
        return cls(tensor.data_ptr(), tensor.stride(0), TYPES[tensor.dtype])


class QuantizedGroup(ctypes.Structure):
    """A group of quantized activations; the sums of its integers are negative."""

    _fields_ = (("scale", c_float), ("sum", c_float), ("minus_sum", c_int32), ("minus_first", c_int32))


class Quantized(ctypes.Structure):
    """Activations as quantized panels multiply them, see native/record.h."""

    _fields_ = (
        ("data", c_void_p),
        ("stride", c_int64),
        ("groups", c_void_p),
        ("num_groups", c_int64),
        ("num_planes", c_int32),
        ("padding", c_int32),
    )


class PagedRows(ctypes.Structure):
    """The position and sequence of each token row, and the block table of every sequence."""

    _fields_ = (
        ("positions", c_void_p),
        ("state_rows", c_void_p),
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("block_size", c_int64),
    )


class Cache(ctypes.Structure):
    """One layer's keys or values [blocks, block_size, kv heads, head_dim]; INT8 heads end in their scale."""

    _fields_ = (("data", c_void_p), ("block_stride", c_int64), ("type", c_int32), ("padding", c_int32))

    @classmethod
    def of(cls, tensor: Tensor) -> Cache:
        """Describe one layer's keys or values [B, K, G, H]."""
        return cls(tensor.data_ptr(), tensor.stride(0), TYPES[tensor.dtype])


class Packed(ctypes.Structure):
    """A matrix [n, k] in panels; see packing.py."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("type", c_int32),
        ("is_interleaved", c_int32),
    )


class Embed(ctypes.Structure):
    """Rows of `table`, or of the `packed` matrix where `table` has no data, times `scale`."""

    _fields_ = (
        ("ids", c_void_p),
        ("table", Matrix),
        ("packed", Packed),
        ("out", Matrix),
        ("width", c_int64),
        ("scale", c_float),
        ("padding", c_int32),
    )


class Norm(ctypes.Structure):
    """RMS norm, or a copy without a weight, the result also quantized if `quantized` has groups."""

    _fields_ = (
        ("x", Matrix),
        ("weight", c_void_p),
        ("out", Matrix),
        ("quantized", Quantized),
        ("width", c_int64),
        ("eps", c_float),
        ("padding", c_int32),
    )


class Pack(ctypes.Structure):
    """Rows of a file, by the address of each, into panels, over as many rows as there are panels."""

    _fields_ = (("weight", Packed), ("rows", c_void_p))


class Add(ctypes.Structure):
    """out += x."""

    _fields_ = (("x", Matrix), ("out", Matrix), ("width", c_int64))


class Gather(ctypes.Structure):
    """out = x[rows]."""

    _fields_ = (("x", Matrix), ("rows", c_void_p), ("out", Matrix), ("width", c_int64))


class Quantize(ctypes.Structure):
    """Rows to integers."""

    _fields_ = (("x", Matrix), ("out", Quantized), ("width", c_int64))


class Gate(ctypes.Structure):
    """out = activation(first half) · second half."""

    _fields_ = (("x", Matrix), ("out", Matrix), ("width", c_int64), ("activation", c_int32), ("padding", c_int32))


class Softcap(ctypes.Structure):
    """out = cap · tanh(x / cap)."""

    _fields_ = (("x", Matrix), ("out", Matrix), ("width", c_int64), ("cap", c_float), ("padding", c_int32))


class Linear(ctypes.Structure):
    """A product with packed weights."""

    _fields_ = (
        ("weight", Packed),
        ("x", Matrix),
        ("quantized", Quantized),
        ("out", Matrix),
        ("epilogue", c_int32),
        ("activation", c_int32),
    )


class Rotate(ctypes.Structure):
    """Norm and rotation of queries and keys; keys and values go to the cache."""

    _fields_ = (
        ("qkv", Matrix),
        ("norm_weight", c_void_p),
        ("rope", c_void_p),
        ("query_scale", c_void_p),
        ("paged_rows", PagedRows),
        ("keys", Cache),
        ("values", Cache),
        ("queries", Matrix),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
    )


class Attention(ctypes.Structure):
    """Causal attention of every row over its own sequence, or the merging of its parts."""

    _fields_ = (
        ("queries", Matrix),
        ("paged_rows", PagedRows),
        ("keys", Cache),
        ("values", Cache),
        ("out", Matrix),
        ("parts", c_void_p),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
    )


class Penalties(ctypes.Structure):
    """The changes of one sequence in its logits; `seen` is twice how often a token was answered, 1 if in the prompt."""

    _fields_ = (
        ("bias_ids", c_void_p),
        ("biases", c_void_p),
        ("seen_ids", c_void_p),
        ("seen", c_void_p),
        ("endings", c_void_p),
        ("num_biases", c_int32),
        ("num_seen", c_int32),
        ("num_endings", c_int32),
        ("repetition", c_float),
        ("presence", c_float),
        ("frequency", c_float),
        ("num_prompt", c_int64),
        ("min_tokens", c_int64),
        ("num_tokens", c_int64),
    )


class SamplingSettings(ctypes.Structure):
    """How one sequence samples its tokens; temperature 0 is greedy, top_k 0 all; `is_on_host`: the token is -1."""

    _fields_ = (
        ("seed", c_uint64),
        ("choice", c_int64),
        ("penalties", c_void_p),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("num_logprobs", c_int32),
        ("is_on_host", c_int32),
    )


class Sample(ctypes.Structure):
    """One token for each output row, and log-probabilities for those that want them (`num_logprobs` not -1).

    `mask_rows` has 1 + the row of `masks` for each output row whose token is limited, 0 for the others.
    """

    _fields_ = (
        ("logits", Matrix),
        ("output_rows", c_void_p),
        ("positions", c_void_p),
        ("ids", c_void_p),
        ("state_rows", c_void_p),
        ("settings", c_void_p),
        ("masks", c_void_p),
        ("mask_rows", c_void_p),
        ("token_ids", c_void_p),
        ("logprobs", c_void_p),
        ("logprob_ids", c_void_p),
        ("scratch", c_void_p),
        ("width", c_int64),
        ("mask_words", c_int64),
    )


SAMPLE_BLOCK = 64
"""Scores that the sampling kernel processes together."""


def sample_scratch(width: int) -> int:
    """Return how many floats of scratch each thread needs to sample from `width` logits."""
    return -(-width // SAMPLE_BLOCK) * (SAMPLE_BLOCK + 1)


class Blocks(ctypes.Structure):
    """A cache of KV blocks [layers, 2, blocks, ...]; strides in bytes."""

    _fields_ = (
        ("data", c_void_p),
        ("layer_stride", c_int64),
        ("half_stride", c_int64),
        ("block_stride", c_int64),
    )


Fields = ctypes.Structure
"""What a record points to."""
