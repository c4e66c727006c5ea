"""Dependent launches: a kernel begins while the one before it still runs, and waits for its end before it uses memory.

On GPUs from Hopper on (NVIDIA's programmatic dependent launch) that hides what it costs to begin a kernel, and a kernel
can fetch its weights into the L2 cache while the one before it computes. The rule: every program of every kernel calls
`wait_for_previous` before it reads or writes memory, and before it ends. The wait is for all programs of the kernel
before; these have waited in turn, so all earlier kernels have ended as well. Behind the wait a kernel may therefore use
memory as in a plain launch. Before it only `prefetch_rows` is allowed: it reads nothing into the program, and the L2
cache sees every write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl

from app.kernels.triton.interpreter import is_interpreting

_is_dependent: ContextVar[bool] = ContextVar("is_dependent", default=False)

LINE_BYTES = tl.constexpr(128)
# Lines of the L2 cache that a program fetches early: 32 KB, so that a full GPU of programs leaves most of the cache.
EARLY_LINES = tl.constexpr(256)


@contextmanager
def launches(*, is_dependent: bool) -> Iterator[None]:
    """Launch the kernels of this block dependently, or plainly as everywhere else.

    Only for GPUs that have dependent launches: see MIN_DEPENDENT_CAPABILITY.
    """
    token = _is_dependent.set(is_dependent)
    try:
        yield
    finally:
        _is_dependent.reset(token)


def launch_options() -> dict[str, bool]:
    """Return the options that every launch passes to its kernel, besides the kernel's own arguments."""
    if _is_dependent.get() and not is_interpreting():
        return {"IS_DEPENDENT": True, "launch_pdl": True}
    return {"IS_DEPENDENT": False}


@triton.jit
def wait_for_previous(IS_DEPENDENT: tl.constexpr):
    """Let the next kernel begin, and wait until the one before has ended and all that it wrote can be read."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch_rows(
    matrix, first_row, num_rows, width, stride, ROWS: tl.constexpr, LINES: tl.constexpr, IS_DEPENDENT: tl.constexpr
):
    """Fetch the beginnings of ROWS rows, of a matrix [num_rows, width], into the L2 cache: LINES lines in all.

    ROWS and LINES are powers of two. Nobody waits for the lines.
    """
    if IS_DEPENDENT:
        PER_ROW: tl.constexpr = max(1, LINES // ROWS)
        index = tl.arange(0, ROWS * PER_ROW)
        row, offset = first_row + index // PER_ROW, index % PER_ROW * LINE_BYTES
        is_inside = (row < num_rows) & (offset < width * (matrix.dtype.element_ty.primitive_bitwidth // 8))
        tl.inline_asm_elementwise(
            """{
            .reg .pred inside;
            setp.ne.b32 inside, $2, 0;
            @inside prefetch.global.L2 [$1];
            mov.b32 $0, 0;
            }""",
            "=r,l,r",
            [(matrix + row.to(tl.int64) * stride).to(tl.int64) + offset, is_inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
