"""Matrix products: native against torch's F.linear, alternating in one run, for every weight type and number of rows.

`python -m benchmarks kernels.linear [--threads N] [--set avx2] [--types int8,int4] [--shapes 960x576] [--rows 1,32]
[--seconds S]` prints one line for each: the best and the median time of one product, and what the best one makes of
memory and of the processor (bytes of packed weights; two operations for each weight and row). Each product has so many
copies of its weights that the next one's are not in a cache, as far as 64 copies reach. With one thread only its own
processor time counts, which other work on the machine disturbs less.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from ctypes import addressof
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from app.checkpoint.tensor_types import TENSOR_TYPES
from app.commands.options import Parser
from app.kernels.cpu import records
from app.kernels.cpu.groups import KINDS
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.native_ops import QuantizedRows
from app.kernels.cpu.packing import PackedLinear, pack, pack_stored
from app.kernels.cpu.records import Code, Epilogue, Matrix, Quantized, Record, Rows, Type
from app.kernels.ops import LinearWeight, StoredWeight
from app.kernels.pages import HugePages
from benchmarks.kernels.timing import add_threads, alternate, begin

# Output and input features of s135 and q05: q, k and v; gate and up; down; the output layer.
SHAPES = "960x576,3072x576,576x1536,49152x576,1152x896,9728x896,896x4864"
ROWS = "1,2,4,8,16,32,64,128,512"
TYPES = "bfloat16,int8,int4,float32,float16,q4_0,q5_0,q5_1,q4_k,q5_k,q6_k"
COPIES_BYTES = 128 << 20
DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16}


class Seconds(NamedTuple):
    """Times of one product."""

    best: float
    median: float


class Product:
    """One shape and type: copies of a weight, packed and as torch reads it."""

    def __init__(self, n: int, k: int, type: Type, num_planes: int, max_rows: int, library: NativeLibrary) -> None:
        self.n, self.k, self.type = n, k, type
        dtype = DTYPES.get(type, torch.bfloat16)
        matrix = (torch.randn(n, k) * 0.02).to(dtype)
        count = max(1, min(64, COPIES_BYTES // matrix.nbytes))
        self._matrices = [matrix.clone() for _ in range(count)]
        pages = HugePages()
        self._packed = [_packed(matrix, type, num_planes, pages, library) for _ in range(count)]
        self.num_bytes = self._packed[0].num_bytes
        self._rows = torch.randn(max_rows, k).to(dtype)
        x = torch.zeros(max_rows, k + 64, dtype=torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
        x[:, :k] = self._rows
        quantized = QuantizedRows.allocate(max_rows, k, num_planes) if type in KINDS else None
        out = torch.zeros(max_rows, n)
        self._alive = (x, quantized, out)
        self._fields = [
            records.Linear(
                weight=packed.fields,
                x=Matrix.of(x),
                quantized=quantized.fields if quantized else Quantized(),
                out=Matrix.of(out),
                epilogue=Epilogue.STORE,
            )
            for packed in self._packed
        ]
        addresses = [addressof(fields) for fields in self._fields]
        self._program = (Record * count)(*(Record(Code.LINEAR, Rows.TOKENS, address) for address in addresses))

    def runs(self, library: NativeLibrary, num_rows: int, num_threads: int) -> tuple[Callable[[], object], ...]:
        """Return the native and the torch run over all copies."""
        rows: Tensor = self._rows[:num_rows]
        return (
            lambda: library.replay(self._program, num_rows, num_rows, num_threads),
            lambda: [functional.linear(rows, matrix) for matrix in self._matrices],
        )

    def seconds(self, library: NativeLibrary, num_rows: int, num_threads: int, limit_s: float) -> list[Seconds]:
        """Time both, taking turns for about `limit_s`."""
        times = alternate(self.runs(library, num_rows, num_threads), num_threads == 1, limit_s)
        count = len(self._packed)
        return [Seconds(min(taken) / count, statistics.median(taken) / count) for taken in times]


def _packed(matrix: Tensor, type: Type, num_planes: int, pages: HugePages, library: NativeLibrary) -> PackedLinear:
    """Pack a matrix; of types that only files have, one of zeros, which takes as long."""
    if type in (*DTYPES, Type.BFLOAT16, Type.INT8, Type.INT4):
        return pack(LinearWeight(matrix), type, num_planes=num_planes, allocate=pages.allocate)
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == type.name)
    blocks = torch.zeros(len(matrix), kind.num_bytes(matrix.shape[1]), dtype=torch.uint8)
    return pack_stored(StoredWeight.of(kind, blocks), library, num_planes=num_planes, allocate=pages.allocate)


def lines(arguments: argparse.Namespace, library: NativeLibrary) -> Iterator[str]:
    """Yield one line for each type, shape and number of rows."""
    num_rows = [int(text) for text in arguments.rows.split(",")]
    for shape in arguments.shapes.split(","):
        n, k = (int(text) for text in shape.split("x"))
        for name in arguments.types.split(","):
            kind = KINDS.get(Type[name.upper()])
            if kind is not None and kind.block_groups > 1 and k % kind.block_columns:
                continue  # files hold another type then
            product = Product(n, k, Type[name.upper()], arguments.planes, max(num_rows), library)
            for count in num_rows:
                ours, theirs = product.seconds(library, count, arguments.threads, arguments.seconds)
                bandwidth = product.num_bytes / ours.best / 1e9
                speed = 2 * n * k * count / ours.best / 1e9
                yield (
                    f"{shape:>10} {name:<8} {count:>4} rows: {ours.best * 1e6:9.1f} us ({ours.median * 1e6:9.1f}) "
                    f"{bandwidth:6.1f} GB/s {speed:7.1f} GFLOP/s; F.linear {theirs.best * 1e6:9.1f} us "
                    f"({theirs.median * 1e6:9.1f}), {theirs.best / ours.best:5.2f} times as long"
                )


def add_options(parser: Parser) -> None:
    """Add what is measured, and for how long."""
    parser.add_argument("--types", default=TYPES, help=f"default {TYPES}")
    parser.add_argument("--shapes", default=SHAPES, help=f"outputs x inputs, default {SHAPES}")
    parser.add_argument("--rows", default=ROWS, help=f"default {ROWS}")
    parser.add_argument("--planes", type=int, default=1, help="bytes of quantized activations, 1 or 2, default 1")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each product, default 0.5")
    add_threads(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    for line in lines(args, begin(args)):
        print(line, flush=True)
    return 0
