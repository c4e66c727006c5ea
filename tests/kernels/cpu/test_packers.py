"""Weights are stored once, in the format of the kernels or of the torch path."""

from __future__ import annotations

import pytest
import torch

from app.checkpoint.tensor_types import TensorType
from app.kernels.cpu.library import load_library
from app.kernels.cpu.packers import PanelPacker, RoundedPacker, activation_dtype, query_dtype
from app.kernels.cpu.packing import PackedLinear
from app.kernels.cpu.records import TYPES, Type
from app.kernels.ops import LinearWeight, StoredWeight
from tests.gguf_blocks import GROUPED, random_blocks

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


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantized_model_keeps_its_original_embedding(quantization: str):
    table = matrix(torch.bfloat16)
    embedding, head = PanelPacker(quantization).tied(table)
    assert embedding is table
    assert isinstance(head, PackedLinear) and head.type is Type.INT8


def test_the_output_layer_of_a_quantized_model_is_int8():
    weight = matrix(torch.bfloat16)
    for quantization in ("int8", "int4"):
        head = PanelPacker(quantization).head(weight)
        assert isinstance(head, PackedLinear) and head.type is Type.INT8
    head = PanelPacker(None).head(weight)
    assert isinstance(head, PackedLinear) and head.type is Type.BFLOAT16


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
    packed = PanelPacker(quantization).head(weight)
    assert isinstance(packed, PackedLinear)
    assert embedding is weight and isinstance(head, LinearWeight)
    assert torch.equal(head.weight, packed.unpacked().to(dtype))


def test_activations_are_bfloat16_only_for_bfloat16_products():
    assert [activation_dtype(dtype) for dtype in FLOATS] == [torch.float32, torch.bfloat16, torch.float32]


def test_the_output_layer_of_a_quantized_model_is_multiplied_with_activations_of_two_bytes():
    weight = matrix(torch.bfloat16)
    for quantization, num_planes in (("int8", 1), ("int4", 2)):
        packer = PanelPacker(quantization)
        assert packer.linear(weight).num_planes == num_planes
        assert packer.head(weight).num_planes == packer.tied(weight)[1].num_planes == 2


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_blocks_of_files_are_kept_in_the_panels_of_their_type(kind: TensorType):
    packer = PanelPacker(None, load_library())
    weight = StoredWeight.of(kind, random_blocks(kind, 64, 256))
    packed = packer.linear(weight, is_gated=True)
    assert isinstance(packed, PackedLinear) and packed.is_interleaved
    assert packed.num_planes == (2 if kind.name in ("Q4_1", "Q5_1") else 1)
    embedding, head = packer.tied(weight)
    assert embedding is head and head.num_planes == (2 if kind.name in ("Q4_1", "Q5_1", "Q8_0") else 1)
    assert head.num_bytes == kind.kept_bytes(64 * 256)


def test_the_dtype_of_queries_depends_on_the_cache():
    assert query_dtype(torch.bfloat16, torch.bfloat16) == torch.bfloat16
    assert query_dtype(torch.float32, torch.bfloat16) == torch.bfloat16
    assert query_dtype(torch.bfloat16, torch.float16) == torch.float32
    assert query_dtype(torch.float32, torch.float32) == torch.float32
    assert [query_dtype(dtype, torch.int8) for dtype in FLOATS[:2]] == list(FLOATS[:2])
