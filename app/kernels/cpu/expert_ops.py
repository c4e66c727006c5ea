"""The operations of mixtures of experts by native kernels: the part of `RecordOps` (native_ops.py) that makes them."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec
from app.kernels.cpu.expert_records import KINDS_OF_SCORES, Combine, Experts, Route
from app.kernels.cpu.groups import KINDS
from app.kernels.cpu.packing import PackedLinear, pack
from app.kernels.cpu.records import TYPES, Code, Epilogue, Fields, Gather, Linear, Matrix, Packed, Quantized, Rows
from app.kernels.ops import ExpertWeights, LinearWeight, Routes, StackedWeight

# Zeros behind each row: odd widths are read in pairs, and rows at powers of two would share cache sets of the CPU.
_ROW_GAP = 32


class ExpertOps(ABC):
    """Implements `Ops` for experts. Engine thread only.

    Rows that experts compute are copied to stand together, by expert, before the first product. Memory for what is
    between two records is shared by all layers.
    """

    def __init__(self) -> None:
        self._expert_buffers: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}
        self._pair_rows: dict[int, int] = {}  # addresses of matrices with a row for each pair: which `Rows` they have
        self._routers: dict[int, tuple[Tensor, PackedLinear]] = {}  # packed, by their address

    @property
    def expert_bytes(self) -> int:
        """Memory of what is between two records of experts."""
        return sum(buffer.nbytes for buffer in self._expert_buffers.values())

    @abstractmethod
    def _make(self, code: Code, fields: Fields, rows_of: Tensor, *kept: object) -> None:
        """Emit a record over the rows that `rows_of` has, and keep what it points to."""

    @abstractmethod
    def _quantized(self, x_TX: Tensor, weight: PackedLinear) -> Quantized:
        """Emit the quantization of `x_TX` for `weight` and return where its result is."""

    @abstractmethod
    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        """Compute out[T, F] = silu(gate) · up, where gate and up are the halves of the input."""

    def route(
        self, x_TD: Tensor, router_ED: Tensor, correction_E: Tensor | None, experts: ExpertSpec, *, out: Routes
    ) -> None:
        router = self._packed_router(router_ED, x_TD.dtype)
        num_rows, num_products = len(x_TD), len(router_ED)
        products = self._buffer("products", (num_rows, 3 * num_products), torch.float32)
        target = products[:, : router.n]
        linear = Linear(weight=router.fields, x=Matrix.of(x_TD), out=Matrix.of(target), epilogue=Epilogue.STORE)
        self._make(Code.LINEAR, linear, x_TD, products, router)
        places, tokens = self._pairs_of(out)
        fields = Route(
            products=Matrix.of(products),
            correction=None if correction_E is None else correction_E.data_ptr(),
            experts=out.experts_TA.data_ptr(),
            scores=out.scores_TA.data_ptr(),
            shared=out.shared_T.data_ptr(),
            pairs=out.pairs_J.data_ptr(),
            places=places.data_ptr(),
            tokens=tokens.data_ptr(),
            starts=out.starts_E1.data_ptr(),
            count=experts.count,
            per_token=experts.per_token,
            num_groups=experts.groups,
            groups_per_token=experts.groups_per_token,
            kind=KINDS_OF_SCORES[experts.scores],
            is_normalized=experts.is_normalized,
            has_shared_gate=experts.has_shared_gate,
            has_rest=router.n > num_products,
            scale=experts.scale,
        )
        self._make(Code.ROUTE, fields, x_TD, correction_E, out, places, tokens)

    def expert_gate_up(self, x_TD: Tensor, routes: Routes, experts: ExpertWeights, *, out: Tensor) -> None:
        _, tokens = self._pairs_of(routes)
        x_JD = self._buffer("x", (len(out), x_TD.shape[1]), x_TD.dtype)
        gather = Gather(x=Matrix.of(x_TD), rows=tokens.data_ptr(), out=Matrix.of(x_JD), width=x_TD.shape[1])
        self._make(Code.GATHER, gather, self._of_pairs(x_JD, routes), x_TD, tokens)
        self._of_pairs(out, routes)
        first = experts.matrices[0]
        if isinstance(first, PackedLinear) and first.is_interleaved:
            self._multiply(x_JD, routes, experts, out, Epilogue.GATED)
            return
        gate_up = self._of_pairs(self._buffer("gate_up", (len(out), 2 * out.shape[1]), out.dtype), routes)
        self._multiply(x_JD, routes, experts, gate_up, Epilogue.STORE)
        self.silu_mul(gate_up, out=out)

    def expert_down(
        self, activated_JF: Tensor, routes: Routes, experts: ExpertWeights, shared_TD: Tensor | None, *, out: Tensor
    ) -> None:
        products = self._buffer("down", (len(activated_JF), out.shape[1]), torch.float32)
        self._multiply(activated_JF, routes, experts, self._of_pairs(products, routes), Epilogue.STORE)
        places, _ = self._pairs_of(routes)
        fields = Combine(
            products=Matrix.of(products),
            places=places.data_ptr(),
            scores=routes.scores_TA.data_ptr(),
            factors=routes.shared_T.data_ptr(),
            out=Matrix.of(out),
            width=out.shape[1],
            per_token=routes.experts_TA.shape[1],
        )
        if shared_TD is not None:
            fields.shared = Matrix.of(shared_TD)
        self._make(Code.COMBINE, fields, out, products, places, routes, shared_TD)

    def _multiply(self, x_JX: Tensor, routes: Routes, experts: ExpertWeights, out: Tensor, epilogue: Epilogue) -> None:
        """Emit the products of each part of the experts' matrices, which have the same parts."""
        of_experts = [each.parts if isinstance(each, StackedWeight) else (each,) for each in experts.matrices]
        begin = 0
        for parts in zip(*of_experts, strict=True):
            packed = [part for part in parts if isinstance(part, PackedLinear)]
            first, table = packed[0], (Packed * len(packed))(*(part.fields for part in packed))
            assert len(packed) == len(parts) and len({(part.type, part.n, part.k) for part in packed}) == 1
            width = first.n // 2 if epilogue is Epilogue.GATED else first.n
            target = out[:, begin : begin + width] if len(of_experts[0]) > 1 else out
            begin += width
            fields = Experts(
                weights=ctypes.addressof(table),
                starts=routes.starts_E1.data_ptr(),
                out=Matrix.of(target),
                count=len(packed),
                epilogue=epilogue,
            )
            if first.type in KINDS:
                fields.quantized = self._quantized(x_JX, first)
            else:
                fields.x = Matrix.of(x_JX)
            self._make(Code.EXPERTS, fields, x_JX, out, routes, table, experts)

    def _packed_router(self, router_ED: Tensor, dtype: torch.dtype) -> PackedLinear:
        """Return a router for rows of `dtype`: its numbers, and below what bfloat16 leaves of them, if anything."""
        key = router_ED.data_ptr()
        if key not in self._routers:
            rows = router_ED
            if dtype == torch.bfloat16:
                rest = router_ED - router_ED.bfloat16().float()
                rows = torch.cat([router_ED, rest]) if rest.any() else router_ED
            self._routers[key] = (router_ED, pack(LinearWeight(rows), TYPES[dtype]))
        return self._routers[key][1]

    def _pairs_of(self, routes: Routes) -> tuple[Tensor, Tensor]:
        """Return memory for what ROUTE says besides `routes`: where each pair stands, and the token of each place."""
        shape = tuple(routes.pairs_J.shape)
        return self._buffer("places", shape, torch.int32), self._buffer("tokens", shape, torch.int64)

    def _of_pairs(self, rows_JX: Tensor, routes: Routes) -> Tensor:
        """Return a matrix that has a row for each pair, and remember that."""
        self._pair_rows[rows_JX.data_ptr()] = Rows.PAIRS + routes.experts_TA.shape[1] - 1
        return rows_JX

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory that records of the same kind share; rows end in zeros."""
        key = (name, shape, dtype)
        if key not in self._expert_buffers:
            width = shape[-1] + _ROW_GAP if len(shape) > 1 else shape[-1]
            self._expert_buffers[key] = torch.zeros(*shape[:-1], -(-width // _ROW_GAP) * _ROW_GAP, dtype=dtype)
        buffer = self._expert_buffers[key]
        return buffer[..., : shape[-1]]
