"""How weights are kept for the CPU: packed for the native kernels, or as the torch path reads them."""

from __future__ import annotations

import torch

from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.packing import STORED_TYPES, pack, pack_stored
from app.kernels.cpu.records import TYPES, Type
from app.kernels.ops import LinearWeight, StoredWeight, Weight
from app.kernels.pages import HugePages

QUANTIZED = {"int8": Type.INT8, "int4": Type.INT4}
HEAD_TYPE = Type.INT8  # of the output layer of a quantized model

# The bytes of the activations that quantized matrices are multiplied with. One byte costs a KL divergence of 0.002 on a
# small model (llama.cpp, which has one for all types: 0.003 to 0.006); two take 1.6 to 2 times as long with many rows,
# and hardly more with one (docs/decisions.md). So few types have two: int4 and the files' Q4_1, which it is measured
# against, and Q5_1. The output layer has the most sensitive input, so INT8 has two there. Output layers of K files have
# one: they would take a third of a step of 32 rows.
_NUM_PLANES = {Type.INT4: 2, Type.Q5_1: 2}
_HEAD_PLANES = {**_NUM_PLANES, Type.INT8: 2}
_NOT_TAKEN = "the packer takes numbers alone"


class PanelPacker:
    """Implements `Packer`: packs every matrix once, for decode and prefill alike; `quantization` as in its setting.

    With a library weights are packed as files store them, unless they are to be quantized, or quantized again.

    The output layer of an int4 model is int8: four bits cost it the most. A plain tied embedding is looked up in the
    panels of the output layer: there is one copy. A quantized model keeps its embedding as it was, because a lookup
    gains nothing from fewer bits.
    """

    def __init__(self, quantization: str | None, library: NativeLibrary | None = None) -> None:
        self._library = library if quantization is None else None
        self.takes_stored = self._library is not None
        self._type = None if quantization is None else QUANTIZED[quantization]
        self._pages = HugePages()

    def linear(self, weight: LinearWeight | StoredWeight, *, is_gated: bool = False) -> Weight:
        type = self._type or _type_of(weight)
        return self._packed(weight, type, is_gated=is_gated, num_planes=_NUM_PLANES.get(type, 1))

    def head(self, weight: LinearWeight | StoredWeight) -> Weight:
        type = _type_of(weight) if self._type is None else HEAD_TYPE
        return self._packed(weight, type, num_planes=_HEAD_PLANES.get(type, 1))

    def tied(self, table: LinearWeight | StoredWeight) -> tuple[Weight, Weight]:
        head = self.head(table)
        return (head if self._type is None else table), head

    def _packed(
        self, weight: LinearWeight | StoredWeight, type: Type, *, is_gated: bool = False, num_planes: int
    ) -> Weight:
        allocate = self._pages.allocate
        if isinstance(weight, StoredWeight):
            assert self._library is not None, _NOT_TAKEN
            return pack_stored(weight, self._library, interleaved=is_gated, num_planes=num_planes, allocate=allocate)
        return pack(weight, type, interleaved=is_gated, num_planes=num_planes, allocate=allocate)


class RoundedPacker:
    """Implements `Packer`: rounds as `PanelPacker` would and keeps matrices: the same quality, nothing saved."""

    takes_stored = False

    def __init__(self, quantization: str) -> None:
        self._type = QUANTIZED[quantization]

    def linear(self, weight: LinearWeight | StoredWeight, *, is_gated: bool = False) -> Weight:
        return _rounded(weight, self._type)

    def head(self, weight: LinearWeight | StoredWeight) -> Weight:
        return _rounded(weight, HEAD_TYPE)

    def tied(self, table: LinearWeight | StoredWeight) -> tuple[Weight, Weight]:
        assert isinstance(table, LinearWeight), _NOT_TAKEN
        return table, self.head(table)


def _type_of(weight: LinearWeight | StoredWeight) -> Type:
    """Return the type of panels that hold a weight as it is."""
    return STORED_TYPES[weight.kind.name] if isinstance(weight, StoredWeight) else TYPES[weight.weight.dtype]


def _rounded(weight: LinearWeight | StoredWeight, type: Type) -> LinearWeight:
    assert isinstance(weight, LinearWeight), _NOT_TAKEN
    return LinearWeight(pack(weight, type).unpacked().to(weight.weight.dtype), weight.bias)


def activation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the rows that the native kernels multiply with weights of `dtype`."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def query_dtype(activations: torch.dtype, kv_cache: torch.dtype) -> torch.dtype:
    """Return the type of the queries that native attention compares with keys of `kv_cache`."""
    return torch.bfloat16 if kv_cache == torch.bfloat16 else activations if kv_cache == torch.int8 else torch.float32
