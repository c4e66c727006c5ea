"""In any order of operations, what is put off is computed before it is read: the numbers are those of no delay."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.kernels.ops import LinearWeight, Ops, PagedBatch
from app.kernels.triton import fusing_ops, triton_ops
from app.kernels.triton.fusing_ops import FusingOps
from tests.cases import examples
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps

ROWS, WIDTH, EPS = 3, 8, 1e-5
EXACT = ReferenceOps()
NORMS = [1 + noise(WIDTH, seed=seed) / 4 for seed in range(2)]
SQUARES = [
    LinearWeight(noise(WIDTH, WIDTH, seed=seed) / WIDTH**0.5, noise(WIDTH, seed=9) if seed == 2 else None)
    for seed in (1, 2)
]
WIDES = [
    LinearWeight(noise(2 * WIDTH, WIDTH, seed=seed) / WIDTH**0.5, noise(2 * WIDTH, seed=9) if seed == 4 else None)
    for seed in (3, 4)
]


class Kernels:
    """The functions that launch kernels, computed by the reference's operations: no bit depends on what is fused."""

    serves = staticmethod(lambda num_rows, dtype: True)

    @staticmethod
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
        EXACT.linear(x, LinearWeight(weight, bias), out=out)

    @staticmethod
    def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, *, residual_TD: Tensor) -> None:
        product = torch.empty_like(residual_TD)
        EXACT.linear(x, LinearWeight(weight, bias), out=product)
        residual_TD += product

    @staticmethod
    def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
        normed = torch.empty_like(x)
        out.fill_(torch.nan)  # some programs write while others read
        EXACT.rms_norm(x, norm, eps, out=normed)
        EXACT.linear(normed, LinearWeight(weight, bias), out=out)

    @staticmethod
    def norm_gate_up(x: Tensor, norm: Tensor, eps: float, weight: Tensor, activation: str, *, out: Tensor) -> None:
        wide = torch.empty(len(x), len(weight))
        Kernels.norm_linear(x, norm, eps, weight, None, out=wide)
        Kernels.gate_mul(wide, activation, out=out)

    @staticmethod
    def gate_mul(wide: Tensor, activation: str, *, out: Tensor) -> None:
        {"silu": EXACT.silu_mul, "gelu": EXACT.gelu_mul}[activation](wide, out=out)

    @staticmethod
    def add(x: Tensor, residual: Tensor, *, out: Tensor) -> None:
        EXACT.add_rms_norm(x, residual, None, 0.0, out=out)

    rms_norm, add_rms_norm, softcap = EXACT.rms_norm, EXACT.add_rms_norm, EXACT.softcap


class Rows:
    """The tensors of a step, and the operations that are run on them one after the other."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.tensors = {name: noise(ROWS, WIDTH, seed=seed) for seed, name in enumerate(NARROW)}
        self.tensors |= {"residual": noise(ROWS, WIDTH, seed=7), "wide": noise(ROWS, 2 * WIDTH, seed=8)}
        self.halves = self.tensors["wide"].split(WIDTH, dim=1)
        self.is_gated = False  # then nothing may read gate and up

    def run(self, step: tuple) -> None:
        """Run a step unless it reads what it must not."""
        name, *names, number = step
        tensors, is_gone = [self.tensors.get(each) for each in names], self.is_gated
        match name:
            case "norm":
                self.ops.rms_norm(tensors[0], NORMS[number], EPS, out=tensors[1])
            case "norm of columns" if not is_gone:
                self.ops.rms_norm(self.halves[number], NORMS[number], EPS, out=self.halves[number])
            case "add":
                norm = NORMS[number] if number < len(NORMS) else None
                self.ops.add_rms_norm(tensors[0], self.tensors["residual"], norm, EPS, out=tensors[1])
            case "linear" if names[0] != names[1]:
                weights = WIDES if names[1] == "wide" else SQUARES
                self.ops.linear(tensors[0], weights[number], out=tensors[1])
                self.is_gated &= names[1] != "wide"
            case "gate" if not is_gone:
                gate = (self.ops.silu_mul, self.ops.gelu_mul)[number]
                gate(self.tensors["wide"], out=tensors[0])
                self.is_gated = True
            case "softcap":
                self.ops.softcap(tensors[0], 2.0, out=tensors[1])


NARROW = ("hidden", "other", "activated")
NARROWS = st.sampled_from(NARROW)
SOURCES = st.sampled_from([*NARROW, "residual"])
EITHER = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("norm"), SOURCES, NARROWS, EITHER),
    st.tuples(st.just("norm of columns"), EITHER),
    st.tuples(st.just("add"), NARROWS, NARROWS, st.integers(0, 2)),
    st.sampled_from([("add", name, name, number) for name in NARROW for number in range(3)]),  # as decoders do
    st.tuples(st.just("linear"), NARROWS, st.sampled_from([*NARROW, "wide"]), EITHER),
    st.tuples(st.just("gate"), NARROWS, EITHER),
    st.tuples(st.just("softcap"), SOURCES, NARROWS, EITHER),
)


NORMED = [("add", "hidden", "hidden", 0), ("linear", "hidden", "wide", 0)]


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=12))
# The activation goes where the norm before it would have been written, or from where that is read.
@example([("linear", "other", "hidden", 0), *NORMED, ("gate", "hidden", 0)])
@example([("norm", "hidden", "other", 0), ("linear", "other", "wide", 0), ("gate", "hidden", 0)])
def test_every_order_of_operations_gives_the_numbers_of_no_delay(steps):
    positions = torch.zeros(ROWS, dtype=torch.int32)
    batch = PagedBatch(ROWS, positions, positions, positions[None], 16)
    unused = SimpleNamespace(num_bytes=0)
    delayed, plain = Rows(FusingOps(unused, unused, ROWS)), Rows(EXACT)  # type: ignore[arg-type]
    delayed.ops.begin_step(batch)
    with (
        patch.object(fusing_ops, "matvec", Kernels),
        patch.multiple(triton_ops, norm=Kernels, gate=Kernels, softcap=Kernels),
    ):
        for step in steps:
            delayed.run(step)
            plain.run(step)
        for name, expected in plain.tensors.items():
            if name != "wide" or not plain.is_gated:
                delayed.ops._catch_up(delayed.tensors[name])
                assert torch.equal(delayed.tensors[name], expected), name
