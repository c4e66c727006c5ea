"""What a kernel costs that depends on the one before it, with programmatic dependent launch and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, processors
from benchmarks.gpu.timing import Call


@triton.jit  # type: ignore[untyped-decorator]
def _link(numbers, DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add 1 to a number of this program; what comes next may be launched, and waits for the end."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    number = numbers + tl.program_id(0)
    tl.store(number, tl.load(number) + 1)


def chains() -> Iterator[Case]:
    """Yield a node of a chain of small kernels, one program for each multiprocessor, in both ways."""
    for is_dependent in (False, True):
        name = "dependent launch" if is_dependent else "plain launch"
        yield Case(name, Work(0), partial(_setup, is_dependent))


def _setup(is_dependent: bool, place: torch.device) -> Sequence[Call]:
    num_processors, _ = processors(place)
    numbers = torch.zeros(num_processors, device=place)
    # Named only where it is asked for: Triton before 3.6 does not know the option.
    options = {"launch_pdl": True} if is_dependent else {}
    return [partial(_link[(num_processors,)], numbers, DEPENDENT=is_dependent, **options)]
