"""How weights are kept for the CPU: packed for the native kernels, or as the torch path reads them."""

from __future__ import annotations

import torch

from app.kernels.cpu.packing import pack
from app.kernels.cpu.records import TYPES, Type
from app.kernels.ops import LinearWeight, Weight
from app.kernels.pages import HugePages

QUANTIZED = {"int8": Type.INT8, "int4": Type.INT4}


class PanelPacker:
    """Packs every matrix once, for decode and prefill alike; `quantization` as in the setting of that name.

    A plain tied embedding is looked up in the panels of the output layer: there is one copy. A quantized model keeps
    its embedding as it was, because a lookup gains nothing from fewer bits.
    """

    def __init__(self, quantization: str | None) -> None:
        self._quantized = None if quantization is None else QUANTIZED[quantization]
        self._pages = HugePages()

    def linear(self, weight: LinearWeight, *, is_gated: bool = False) -> Weight:
        """See Packer.linear."""
        kind = self._quantized or TYPES[weight.weight.dtype]
        return pack(weight, kind, interleaved=is_gated, allocate=self._pages.allocate)

    def tied(self, table: LinearWeight) -> tuple[Weight, Weight]:
        """See Packer.tied."""
        head = self.linear(table)
        return (head if self._quantized is None else table), head


class RoundedPacker:
    """Rounds weights as `PanelPacker` would and keeps them as matrices: the same quality, but nothing saved."""

    def __init__(self, quantization: str) -> None:
        self._type = QUANTIZED[quantization]

    def linear(self, weight: LinearWeight, *, is_gated: bool = False) -> Weight:
        """See Packer.linear."""
        rounded = pack(weight, self._type).unpacked()
        return LinearWeight(rounded.to(weight.weight.dtype), weight.bias)

    def tied(self, table: LinearWeight) -> tuple[Weight, Weight]:
        """See Packer.tied."""
        return table, self.linear(table)


def activation_dtype(dtype: torch.dtype, quantization: str | None) -> torch.dtype:
    """Return the type of the rows that the native kernels multiply with weights of `dtype`.

    int4 weights are multiplied as bfloat16 whatever they were.
    """
    return torch.bfloat16 if dtype == torch.bfloat16 or quantization == "int4" else torch.float32


def query_dtype(activations: torch.dtype, kv_cache: torch.dtype) -> torch.dtype:
    """Return the type of the queries that native attention compares with keys of `kv_cache`."""
    return torch.bfloat16 if kv_cache == torch.bfloat16 else activations if kv_cache == torch.int8 else torch.float32
