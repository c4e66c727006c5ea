"""`Ops` by native kernels: each call makes a record, which is run at once, or kept for a program of the whole step."""

from __future__ import annotations

import ctypes
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.attention_scratch import scratch_floats
from app.kernels.cpu.expert_ops import ExpertOps
from app.kernels.cpu.fusion import fuse
from app.kernels.cpu.groups import GROUP, KINDS
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.packing import PackedLinear
from app.kernels.cpu.records import (
    Activation,
    Cache,
    Code,
    Epilogue,
    Matrix,
    PagedRows,
    Quantized,
    QuantizedGroup,
    Record,
    Rows,
)
from app.kernels.ops import LinearWeight, PagedBatch, StackedWeight, Weight


class Step(NamedTuple):
    """A record in the making: it can still be changed, or join the one before it (see fusion.py)."""

    code: Code
    rows: int  # Rows
    fields: records.Fields
    num_rows: int  # that there are, at most


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Memory for some rows of quantized activations; `fields` holds bare addresses of it."""

    fields: Quantized
    num_rows: int
    integers: Tensor  # int8 [rows, bytes and padding]
    groups: Tensor  # uint8 [rows, groups, bytes of a QuantizedGroup]

    @classmethod
    def allocate(cls, num_rows: int, width: int, num_planes: int) -> QuantizedRows:
        """Return memory for `num_rows` rows of `width` values, as integers of `num_planes` bytes."""
        num_groups = -(-width // GROUP)
        # A power of two would put all rows into the same places of a cache.
        stride = -(-num_planes * num_groups * GROUP // 64) * 64 + 64
        integers = torch.zeros(num_rows, stride, dtype=torch.int8)
        groups = torch.zeros(num_rows, num_groups, ctypes.sizeof(QuantizedGroup), dtype=torch.uint8)
        fields = Quantized(
            data=integers.data_ptr(),
            stride=stride,
            groups=groups.data_ptr(),
            num_groups=num_groups,
            num_planes=num_planes,
        )
        return cls(fields, num_rows, integers, groups)


class RecordOps(ExpertOps):
    """Implements `Ops` (see there for shapes) by records of what is to be done. Engine thread only.

    Differences: rows are not padded; what is added up, `residual` and the fused queries, keys and values, is float32
    whatever the model's type; `rope` tables are float32; attention reads each layer's cache where it lies.
    """

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__()
        self.max_threads = max(torch.get_num_threads(), os.cpu_count() or 1)
        self._library = library
        self._kept: list[object] = []  # what the records point to
        self._float_weights: dict[int, tuple[Tensor, Tensor]] = {}  # with their own, whose addresses they go by
        self._outputs: set[int] = set()  # addresses of matrices with a row for each wanted logit row
        # Of quantized activations, by their address, width and number of planes.
        self._quantized_rows: dict[tuple[int, int, int], QuantizedRows] = {}
        self._floats = torch.empty(0)
        self._paged_rows: PagedRows | None = None
        self._batch: PagedBatch | None = None

    @abstractmethod
    def _emit(self, step: Step) -> None:
        """Take the next record."""

    def begin_step(self, batch: PagedBatch) -> None:
        tables = batch.block_tables_SB
        self._batch = batch
        self._pair_rows.clear()
        self._paged_rows = PagedRows(
            batch.positions_T.data_ptr(),
            batch.state_rows_T.data_ptr(),
            tables.data_ptr(),
            tables.stride(0),
            batch.block_size,
        )

    def embed(self, ids_T: Tensor, table: Weight, scale: float, *, out: Tensor) -> None:
        fields = records.Embed(ids=ids_T.data_ptr(), out=Matrix.of(out), width=out.shape[1], scale=scale)
        if isinstance(table, PackedLinear):
            fields.packed = table.fields
        else:
            assert isinstance(table, LinearWeight)
            fields.table = Matrix.of(table.weight)
        self._make(Code.EMBED, fields, out, ids_T, table)

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
        self._norm(x_TD, weight_D, eps, out)

    def add_rms_norm(
        self, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor | None, eps: float, *, out: Tensor
    ) -> None:
        fields = records.Add(x=Matrix.of(x_TD), out=Matrix.of(residual_TD), width=out.shape[1])
        self._make(Code.ADD, fields, residual_TD, x_TD)
        self._norm(residual_TD, weight_D, eps, out)

    def linear(self, x_TX: Tensor, weight: Weight, *, out: Tensor) -> None:
        parts = weight.parts if isinstance(weight, StackedWeight) else (weight,)
        quantized: dict[int, Quantized] = {}  # of `x_TX`, by the number of planes
        begin = 0
        for part in parts:
            assert isinstance(part, PackedLinear)
            target = out[:, begin : begin + part.n] if len(parts) > 1 else out
            fields = records.Linear(weight=part.fields, out=Matrix.of(target), epilogue=Epilogue.STORE)
            if part.type not in KINDS:
                fields.x = Matrix.of(x_TX)
            elif part.num_planes in quantized:
                fields.quantized = quantized[part.num_planes]
            else:
                fields.quantized = quantized[part.num_planes] = self._quantized(x_TX, part)
            self._make(Code.LINEAR, fields, x_TX, out, part)
            begin += part.n

    def qk_norm_rope_kv_write(
        self,
        qkv_TX: Tensor,
        norm_weight: Tensor | None,
        eps: float,
        rope_PH: Tensor,
        k_cache_BKGH: Tensor,
        v_cache_BKGH: Tensor,
        query_scale_P: Tensor | None = None,
        *,
        out: Tensor,
    ) -> None:
        assert rope_PH.dtype == torch.float32 and rope_PH.is_contiguous()
        assert query_scale_P is None or (query_scale_P.dtype == torch.float32 and query_scale_P.is_contiguous())
        norm = None if norm_weight is None else self._as_float(norm_weight)
        fields = records.Rotate(
            qkv=Matrix.of(qkv_TX),
            norm_weight=None if norm is None else norm.data_ptr(),
            rope=rope_PH.data_ptr(),
            query_scale=None if query_scale_P is None else query_scale_P.data_ptr(),
            paged_rows=self._paged_rows,
            keys=Cache.of(k_cache_BKGH),
            values=Cache.of(v_cache_BKGH),
            queries=Matrix.of(out),
            num_heads=out.shape[1],
            num_kv_heads=k_cache_BKGH.shape[2],
            head_dim=out.shape[2],
            eps=eps,
        )
        tables = (norm, rope_PH, query_scale_P)
        self._make(Code.ROTATE, fields, out, qkv_TX, tables, k_cache_BKGH, v_cache_BKGH, self._batch)

    def paged_attention(
        self,
        q_TNH: Tensor,
        k_cache_BKGH: Tensor,
        v_cache_BKGH: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        *,
        out: Tensor,
    ) -> None:
        num_heads, head_dim = q_TNH.shape[1:]
        num_kv_heads = k_cache_BKGH.shape[2]
        scratch = self._scratch(scratch_floats(num_heads, num_kv_heads, head_dim, self.max_threads))
        fields = records.Attention(
            queries=Matrix.of(q_TNH),
            paged_rows=self._paged_rows,
            keys=Cache.of(k_cache_BKGH),
            values=Cache.of(v_cache_BKGH),
            out=Matrix.of(out),
            parts=scratch.data_ptr(),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            window=window or 0,
            scale=scale,
            softcap=softcap or 0,
        )
        self._make(Code.ATTENTION, fields, out, q_TNH, scratch, k_cache_BKGH, v_cache_BKGH, self._batch)
        self._make(Code.ATTENTION_MERGE, records.Attention.from_buffer_copy(fields), out)

    def silu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        self._gate(Activation.SILU, gate_up_TX, out)

    def gelu_mul(self, gate_up_TX: Tensor, *, out: Tensor) -> None:
        self._gate(Activation.GELU, gate_up_TX, out)

    def softcap(self, x_RV: Tensor, cap: float, *, out: Tensor) -> None:
        fields = records.Softcap(x=Matrix.of(x_RV), out=Matrix.of(out), width=out.shape[1], cap=cap)
        self._make(Code.SOFTCAP, fields, out, x_RV)

    def gather_rows(self, x_TD: Tensor, rows_R: Tensor, *, out: Tensor) -> None:
        self._outputs.add(out.data_ptr())
        fields = records.Gather(x=Matrix.of(x_TD), rows=rows_R.data_ptr(), out=Matrix.of(out), width=out.shape[1])
        self._make(Code.GATHER, fields, out, x_TD, rows_R)

    def logits(self, x_RD: Tensor, weight: Weight, *, out: Tensor) -> None:
        self._outputs.add(out.data_ptr())
        self.linear(x_RD, weight, out=out)

    def copy_blocks(self, copies_C2: Tensor, *, out: Tensor) -> None:
        """Copy at once, without a record."""
        self._library.copy_blocks(out, out, copies_C2)

    def swap_blocks(self, blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
        """Copy at once, without a record."""
        self._library.copy_blocks(blocks, out, copies_C2)

    def _norm(self, x_TD: Tensor, weight_D: Tensor | None, eps: float, out: Tensor) -> None:
        """Emit a norm; without a weight, a copy."""
        weight = None if weight_D is None else self._as_float(weight_D)
        address = None if weight is None else weight.data_ptr()
        fields = records.Norm(x=Matrix.of(x_TD), weight=address, out=Matrix.of(out), width=out.shape[1], eps=eps)
        self._make(Code.NORM, fields, out, x_TD, weight)

    def _gate(self, activation: Activation, gate_up_TX: Tensor, out: Tensor) -> None:
        fields = records.Gate(x=Matrix.of(gate_up_TX), out=Matrix.of(out), width=out.shape[1], activation=activation)
        self._make(Code.GATE, fields, out, gate_up_TX)

    def _make(self, code: Code, fields: records.Fields, rows_of: Tensor, *kept: object) -> None:
        """Emit a record over the rows that `rows_of` has, and keep what it points to."""
        self._kept += (rows_of, *kept)
        address = rows_of.data_ptr()
        rows = Rows.OUTPUTS if address in self._outputs else self._pair_rows.get(address, Rows.TOKENS)
        self._emit(Step(code, rows, fields, len(rows_of)))

    def _quantized(self, x_TX: Tensor, weight: PackedLinear) -> Quantized:
        """Emit the quantization of `x_TX` for `weight` and return where its result is."""
        key = (x_TX.data_ptr(), weight.k, weight.num_planes)
        found = self._quantized_rows.get(key)
        if found is None or found.num_rows < len(x_TX):
            self._kept.append(found)  # records before this one have its address
            found = self._quantized_rows[key] = QuantizedRows.allocate(len(x_TX), weight.k, weight.num_planes)
        fields = records.Quantize(x=Matrix.of(x_TX), out=found.fields, width=weight.k)
        self._make(Code.QUANTIZE, fields, x_TX)
        return found.fields

    @property
    def activation_bytes(self) -> int:
        """Memory of activations that it has made: quantized ones, and those between two records of experts."""
        return self.expert_bytes + sum(
            rows.integers.nbytes + rows.groups.nbytes for rows in self._quantized_rows.values()
        )

    def _scratch(self, num_floats: int) -> Tensor:
        """Return memory that one record at a time may use."""
        if len(self._floats) < num_floats:
            self._floats = torch.empty(num_floats)
        return self._floats

    def _as_float(self, weight: Tensor) -> Tensor:
        """Return a small weight as float32; one copy each, however often it is asked for."""
        if weight.dtype == torch.float32 and weight.is_contiguous():
            return weight
        key = weight.data_ptr()
        if key not in self._float_weights:
            self._float_weights[key] = (weight, weight.float().contiguous())
        return self._float_weights[key][1]


class Program:
    """A recorded step, ready to be replayed by up to `max_threads`. Engine thread only; `kept` is what it points to."""

    def __init__(
        self, library: NativeLibrary, steps: Sequence[Step], max_threads: int, kept: tuple[object, ...]
    ) -> None:
        self.codes = tuple(step.code for step in steps)
        self._library = library
        self._steps = steps
        self._max_threads = max_threads
        self._kept = kept
        self.records = (Record * len(steps))(
            *(Record(step.code, step.rows, ctypes.addressof(step.fields)) for step in steps)
        )

    def part(self, begin: int, end: int) -> Program:
        """Return the program of the steps [begin, end)."""
        return Program(self._library, self._steps[begin:end], self._max_threads, self._kept)

    def replay(self, num_tokens: int, num_outputs: int, num_threads: int, ticks: Tensor | None = None) -> None:
        """Run the step over its first rows; one call, which releases the GIL. For `ticks` see NativeLibrary.replay."""
        self._library.replay(self.records, num_tokens, num_outputs, min(num_threads, self._max_threads), ticks)


class NativeOps(RecordOps):
    """Runs each operation at once, over all rows of its output; the native kernels one by one."""

    def _emit(self, step: Step) -> None:
        num_rows = step.num_rows
        if step.code in (Code.ROTATE, Code.ATTENTION, Code.ATTENTION_MERGE, Code.ROUTE) or step.rows >= Rows.PAIRS:
            assert self._batch is not None, "begin_step comes first"
            num_rows = self._batch.num_tokens * max(1, step.rows - Rows.PAIRS + 1)
        self._library.run(step.code, step.fields, num_rows, min(torch.get_num_threads(), self.max_threads))
        self._kept.clear()


class Recorder(RecordOps):
    """Collects the records of a step, fused where one can do the work of two, into one program."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(library)
        self.steps: list[Step] = []

    def program(self) -> Program:
        """Return the program recorded so far; it keeps all that its records point to."""
        return Program(
            self._library,
            self.steps,
            self.max_threads,
            (*self._kept, self._quantized_rows, self._float_weights, self._routers),
        )

    def _emit(self, step: Step) -> None:
        if not (self.steps and fuse(self.steps[-1].fields, step.fields)):
            self.steps.append(step)
