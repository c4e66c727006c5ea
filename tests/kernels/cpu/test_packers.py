"""Weights are stored once, in the format of the kernels or of the torch path."""

from __future__ import annotations

import pytest
import torch

from app.kernels.cpu.packers import PanelPacker, RoundedPacker, activation_dtype, query_dtype
from app.kernels.cpu.packing import PackedLinear
from app.kernels.cpu.records import TYPES, Type
from app.kernels.ops import LinearWeight

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def matrix(dtype: torch.dtype, *, has_bias: bool = False) -> LinearWeight:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(66, 40, generator=generator).to(dtype)
    return LinearWeight(weight, torch.randn(66, generator=generator).to(dtype) if has_bias else None)


@pytest.mark.parametrize("dtype", FLOATS)
def test_plain_weights_are_packed_exactly(dtype: torch.dtype):
    weight = matrix(dtype, has_bias=True)
    packed = PanelPacker(None).linear(weight)
    assert isinstance(packed, PackedLinear) and packed.type is TYPES[dtype] and not packed.is_interleaved
    assert torch.equal(packed.unpacked(), weight.weight.float())
    assert torch.equal(packed.bias[:66], weight.bias.float())


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_gate_and_up_are_interleaved_for_every_type(quantization: str | None):
    packed = PanelPacker(quantization).linear(matrix(torch.bfloat16), is_gated=True)
    assert isinstance(packed, PackedLinear) and packed.is_interleaved


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_plain_tied_matrix_is_stored_once(dtype: torch.dtype):
    embedding, head = PanelPacker(None).tied(matrix(dtype))
    assert embedding is head


@pytest.mark.parametrize(("quantization", "type"), [("int8", Type.INT8), ("int4", Type.INT4)])
def test_a_quantized_model_keeps_its_original_embedding(quantization: str, type: Type):
    table = matrix(torch.bfloat16)
    embedding, head = PanelPacker(quantization).tied(table)
    assert embedding is table
    assert isinstance(head, PackedLinear) and head.type is type


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_torch_path_multiplies_with_the_same_rounded_weights(quantization: str, dtype: torch.dtype):
    weight = matrix(dtype, has_bias=True)
    rounded = RoundedPacker(quantization).linear(weight)
    packed = PanelPacker(quantization).linear(weight)
    assert isinstance(rounded, LinearWeight) and isinstance(packed, PackedLinear)
    assert torch.equal(rounded.weight, packed.unpacked().to(dtype)) and rounded.bias is weight.bias
    assert not torch.equal(rounded.weight, weight.weight)
    embedding, head = RoundedPacker(quantization).tied(weight)
    assert embedding is weight and isinstance(head, LinearWeight) and torch.equal(head.weight, rounded.weight)


def test_activations_are_bfloat16_only_for_bfloat16_products():
    assert [activation_dtype(dtype, None) for dtype in FLOATS] == [torch.float32, torch.bfloat16, torch.float32]
    assert [activation_dtype(dtype, "int8") for dtype in FLOATS] == [torch.float32, torch.bfloat16, torch.float32]
    assert [activation_dtype(dtype, "int4") for dtype in FLOATS] == [torch.bfloat16] * 3


def test_the_dtype_of_queries_depends_on_the_cache():
    assert query_dtype(torch.bfloat16, torch.bfloat16) == torch.bfloat16
    assert query_dtype(torch.float32, torch.bfloat16) == torch.bfloat16
    assert query_dtype(torch.bfloat16, torch.float16) == torch.float32
    assert query_dtype(torch.float32, torch.float32) == torch.float32
    assert [query_dtype(dtype, torch.int8) for dtype in FLOATS[:2]] == list(FLOATS[:2])
