"""Paged attention: native against eager torch, alternating in one run; decode and prefill.

`python -m benchmarks kernels.attention [--threads N] [--types bfloat16,int8] [--only prefill] [--seconds S]` prints one
line for each case: the best and the median time of one layer; what the best one makes of memory (bytes of keys and
values) or, for a prompt, of the processor (four operations for each visible token and dimension of a query head). There
are so many layers that the next one's keys and values are not in a cache, as far as 512 MiB reach; blocks are
shuffled. With one thread only its own processor time counts, which other work on the machine disturbs less.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from ctypes import addressof
from typing import NamedTuple

import torch
from torch import Tensor

from app.commands.options import Parser
from app.kernels.cpu import records
from app.kernels.cpu.attention_scratch import scratch_floats
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Cache, Code, Matrix, PagedRows, Record, Rows
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import PagedBatch, pad_rows
from app.kernels.pages import HugePages
from benchmarks.kernels.timing import add_threads, alternate, begin

BLOCK_SIZE = 16
LAYERS_BYTES = 512 << 20
MAX_LAYERS = 128
TYPES = "bfloat16,int8,float32"


class Case(NamedTuple):
    """Query heads, key heads, head width; sequences; tokens of each; is all of it computed, or one token each?"""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    batch: int
    length: int
    is_prompt: bool = False


CASES = (
    Case(9, 3, 64, 1, 192),
    Case(9, 3, 64, 8, 192),
    Case(9, 3, 64, 32, 192),
    Case(14, 2, 64, 16, 192),
    Case(9, 3, 64, 1, 8192),
    Case(16, 8, 64, 1, 1024),
    Case(16, 8, 64, 8, 1024),
    Case(16, 8, 64, 32, 128),
    Case(16, 8, 64, 32, 1024),
    Case(16, 8, 64, 128, 1024),
    Case(32, 8, 128, 8, 1024),
    Case(32, 8, 128, 32, 1024),
    *(Case(9, 3, 64, 1, length, True) for length in (128, 512, 1024, 2048)),
    *(Case(32, 8, 128, 1, length, True) for length in (128, 512, 1024, 2048)),
)


class Layers:
    """One case: layers of keys and values, and the step that attends to them."""

    def __init__(self, case: Case, dtype: torch.dtype, num_threads: int) -> None:
        self._case = case
        blocks = -(-case.length // BLOCK_SIZE)
        num_blocks = case.batch * blocks + 1
        width = case.head_dim + 4 * (dtype == torch.int8)
        shape = (num_blocks, BLOCK_SIZE, case.num_kv_heads, width)
        self.num_bytes = 2 * case.batch * case.length * case.num_kv_heads * width * dtype.itemsize
        count = max(1, min(MAX_LAYERS, LAYERS_BYTES // self.num_bytes))
        pages = HugePages()
        self._layers = [(_filled(shape, dtype, pages), _filled(shape, dtype, pages)) for _ in range(count)]
        rows = case.length if case.is_prompt else 1
        self._num_rows = case.batch * rows
        padding = torch.zeros(pad_rows(self._num_rows) - self._num_rows, dtype=torch.int64)
        positions = torch.arange(case.length - rows, case.length).repeat(case.batch)
        sequences = torch.arange(1, case.batch + 1).repeat_interleave(rows)
        tables = torch.zeros(case.batch + 1, blocks, dtype=torch.int32)
        tables[1:] = torch.randperm(num_blocks - 1).view(case.batch, blocks) + 1
        self._batch = PagedBatch(
            self._num_rows, torch.cat([positions, padding]), torch.cat([sequences, padding]), tables, BLOCK_SIZE
        )
        stored = torch.bfloat16 if dtype == torch.int8 else dtype
        size = case.num_heads * case.head_dim
        self._queries, self._out = (torch.randn(len(self._batch.positions_T), size).to(stored) for _ in range(2))
        self._scratch = torch.empty(scratch_floats(*case[:3], num_threads))
        self._fields = [self._attention(keys, values) for keys, values in self._layers]
        steps = [(code, addressof(x)) for x in self._fields for code in (Code.ATTENTION, Code.ATTENTION_MERGE)]
        self._program = (Record * len(steps))(*(Record(code, Rows.TOKENS, address) for code, address in steps))

    def native(self, library: NativeLibrary, num_threads: int) -> None:
        """Run all layers natively."""
        library.replay(self._program, self._num_rows, self._num_rows, num_threads)

    def torch(self) -> None:
        """Run all layers in eager torch."""
        ops = TorchOps()
        ops.begin_step(self._batch)
        heads = (self._case.num_heads, self._case.head_dim)
        queries, out = self._queries.view(-1, *heads), self._out.view(-1, *heads)
        for keys, values in self._layers:
            ops.paged_attention(queries, keys, values, self._case.head_dim**-0.5, None, out=out)

    def seconds(
        self, runs: tuple[Callable[[], None], ...], is_alone: bool, limit_s: float
    ) -> list[tuple[float, float]]:
        """Time the runs in turn for about `limit_s`; the best and the median of one layer."""
        count = len(self._layers)
        times = alternate(runs, is_alone, limit_s)
        return [(min(taken) / count, statistics.median(taken) / count) for taken in times]

    def _attention(self, keys: Tensor, values: Tensor) -> records.Attention:
        case, batch = self._case, self._batch
        tables = batch.block_tables_SB
        return records.Attention(
            queries=Matrix.of(self._queries),
            paged_rows=PagedRows(
                batch.positions_T.data_ptr(),
                batch.state_rows_T.data_ptr(),
                tables.data_ptr(),
                tables.stride(0),
                BLOCK_SIZE,
            ),
            keys=Cache.of(keys),
            values=Cache.of(values),
            out=Matrix.of(self._out),
            parts=self._scratch.data_ptr(),
            num_heads=case.num_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim=case.head_dim,
            scale=case.head_dim**-0.5,
        )


def _filled(shape: tuple[int, ...], dtype: torch.dtype, pages: HugePages) -> Tensor:
    filled = pages.allocate(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    return filled.copy_(_heads(shape, dtype))


def _heads(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype != torch.int8:
        return torch.randn(shape).to(dtype)
    heads = torch.randint(-127, 128, shape, dtype=torch.int8)
    heads[..., -4:] = torch.tensor([0.01]).view(torch.int8)
    return heads


def lines(arguments: argparse.Namespace, library: NativeLibrary) -> Iterator[str]:
    """Yield one line for each case and type."""
    for case in CASES:
        if arguments.only == ("decode" if case.is_prompt else "prefill"):
            continue
        for name in arguments.types.split(","):
            layers = Layers(case, getattr(torch, name), arguments.threads)
            runs: tuple[Callable[[], None], ...] = (lambda: layers.native(library, arguments.threads),)  # noqa: B023
            if name != "int8":
                runs += (layers.torch,)
            (best, median), *theirs = layers.seconds(runs, arguments.threads == 1, arguments.seconds)
            operations = 2 * case.num_heads * case.head_dim * case.length * (case.length + 1)
            rate = (
                f"{operations / best / 1e9:7.1f} GFLOP/s"
                if case.is_prompt
                else f"{layers.num_bytes / best / 1e9:7.1f} GB/s"
            )
            shape = f"{case.num_heads}/{case.num_kv_heads}/{case.head_dim}"
            kind = f"prompt of {case.length}" if case.is_prompt else f"{case.batch} x {case.length}"
            line = f"{shape:>9} {kind:<15} {name:<8} {best * 1e6:9.1f} us ({median * 1e6:9.1f}) {rate}"
            if theirs:
                line += f"; torch {theirs[0][0] * 1e6:10.1f} us, {theirs[0][0] / best:5.1f} times as long"
            yield line


def add_options(parser: Parser) -> None:
    """Add what is measured, and for how long."""
    parser.add_argument("--types", default=TYPES, help=f"default {TYPES}")
    parser.add_argument("--only", choices=("decode", "prefill"), help="only these cases")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each case, default 1")
    add_threads(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    for line in lines(args, begin(args)):
        print(line, flush=True)
    return 0
