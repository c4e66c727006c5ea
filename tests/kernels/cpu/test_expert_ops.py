"""The operations of experts by native kernels: equal to the reference, and a row's bits are its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from app.checkpoint.spec import ExpertSpec, RouterScores
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.native_ops import NativeOps
from app.kernels.cpu.packers import PanelPacker
from app.kernels.cpu.packing import PackedLinear
from app.kernels.ops import ExpertWeights, LinearWeight
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps
from tests.kernels.routed import HIDDEN, SPECS, Mixture, compute, route

COUNTS = (1, 2, 7, 64)
# The type of weights and their quantization: the relative error.
FORMS = {
    "float32": (torch.float32, None, 1e-6),
    "float16": (torch.float16, None, 1e-6),
    "bfloat16": (torch.bfloat16, None, 0.01),
    "int8": (torch.bfloat16, "int8", 0.02),
    "int4": (torch.bfloat16, "int4", 0.01),
}


def mixtures(spec: ExpertSpec, form: str) -> tuple[Mixture, Mixture, torch.dtype]:
    """A mixture as the kernels keep it, the same for the reference, and the type of its rows."""
    dtype, quantization, _ = FORMS[form]
    packed = Mixture.of(spec, dtype).packed(PanelPacker(quantization))

    def unpacked(weights: ExpertWeights) -> ExpertWeights:
        parts = [each for each in weights.matrices if isinstance(each, PackedLinear)]
        return ExpertWeights(tuple(LinearWeight(part.unpacked()) for part in parts))

    plain = replace(packed, gate_up=unpacked(packed.gate_up), down=unpacked(packed.down))
    return packed, plain, torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def rows_of(count: int, dtype: torch.dtype) -> Tensor:
    return noise(count, HIDDEN, dtype=dtype, seed=count)


@pytest.mark.parametrize("num_rows", COUNTS)
@pytest.mark.parametrize("name", SPECS)
def test_routes_are_those_of_the_reference(name: str, num_rows: int, library: NativeLibrary):
    mixture = Mixture.of(SPECS[name])
    for dtype in (torch.float32, torch.bfloat16):
        x_TD = rows_of(num_rows, dtype)
        ours, expected = route(NativeOps(library), mixture, x_TD), route(ReferenceOps(), mixture, x_TD)
        num_pairs = num_rows * mixture.spec.per_token
        assert torch.equal(ours.experts_TA[:num_rows], expected.experts_TA[:num_rows])
        assert torch.equal(ours.starts_E1, expected.starts_E1)
        assert torch.equal(ours.pairs_J[:num_pairs], expected.pairs_J[:num_pairs])
        close = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(ours.scores_TA[:num_rows], expected.scores_TA[:num_rows], **close)
        torch.testing.assert_close(ours.shared_T[:num_rows], expected.shared_T[:num_rows], **close)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SPECS)
def test_results_are_those_of_the_reference(name: str, form: str, library: NativeLibrary):
    packed, plain, dtype = mixtures(SPECS[name], form)
    for count in COUNTS:
        x_TD = rows_of(count, dtype)
        ours, expected = compute(NativeOps(library), packed, x_TD), compute(ReferenceOps(), plain, x_TD)
        error = float((ours.float() - expected.float()).norm() / expected.float().norm())
        assert error < FORMS[form][2], f"{count} rows"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["softmax", "gated", "one"])
def test_a_row_has_its_bits_alone_and_in_any_company_and_order(name: str, form: str, library: NativeLibrary):
    mixture, _, dtype = mixtures(SPECS[name], form)
    x_TD = rows_of(64, dtype)
    whole = compute(NativeOps(library), mixture, x_TD)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(compute(NativeOps(library), mixture, x_TD[order]), whole[order])
    for row in range(0, 64, 9):
        assert torch.equal(compute(NativeOps(library), mixture, x_TD[row : row + 1]), whole[row : row + 1])
    assert torch.equal(compute(NativeOps(library), mixture, x_TD[5:12]), whole[5:12])
    torch.set_num_threads(3)
    assert torch.equal(compute(NativeOps(library), mixture, x_TD), whole)


@pytest.mark.parametrize("form", ["float32", "int8"])
def test_large_experts_are_computed_in_pieces(form: str, library: NativeLibrary):
    """One owner has several pieces of each expert, the last one shorter, and a panel that no other one pairs with."""
    spec = replace(SPECS["softmax"], width=5000)
    packed, plain, dtype = mixtures(spec, form)
    for count in (1, 3, 40):
        x_TD = rows_of(count, dtype)
        ours = compute(NativeOps(library), packed, x_TD)
        expected = compute(ReferenceOps(), plain, x_TD)
        error = float((ours.float() - expected.float()).norm() / expected.float().norm())
        assert error < 5 * FORMS[form][2], f"{count} rows"  # sums of 5000 products are less exact than of 24
        assert torch.equal(compute(NativeOps(library), packed, x_TD[:1]), ours[:1])
        torch.set_num_threads(3)
        assert torch.equal(compute(NativeOps(library), packed, x_TD), ours)
        torch.set_num_threads(1)


def test_one_expert_may_have_all_rows_and_others_none(library: NativeLibrary):
    packed, plain, _ = mixtures(replace(SPECS["softmax"], count=6), "float32")
    packed.router_ED.zero_()
    packed.router_ED[4, 0], packed.router_ED[2, 1] = 1.0, 1.0
    x_TD = rows_of(64, torch.float32).abs()
    routes = route(NativeOps(library), packed, x_TD)
    assert routes.starts_E1.tolist() == [0, 0, 0, 64, 64, 128, 128]
    assert routes.experts_TA[:64].tolist() == [[2, 4]] * 64
    whole = compute(NativeOps(library), packed, x_TD)
    torch.testing.assert_close(whole, compute(ReferenceOps(), plain, x_TD), rtol=1e-5, atol=1e-5)
    assert torch.equal(compute(NativeOps(library), packed, x_TD[9:10]), whole[9:10])


@pytest.mark.parametrize("scores", RouterScores)
def test_equal_scores_go_to_the_lowest_number(scores: RouterScores, library: NativeLibrary):
    mixture = Mixture.of(ExpertSpec(count=8, per_token=3, width=24, scores=scores, groups=4, groups_per_token=2))
    mixture.correction_E = None
    mixture.router_ED.copy_(mixture.router_ED[:1].expand(8, HIDDEN))
    assert route(NativeOps(library), mixture, noise(9, HIDDEN)).experts_TA[:9].tolist() == [[0, 1, 2]] * 9
    mixture.router_ED[5] *= 2  # the group of 4 and 5 comes first for half of the rows
    chosen = {tuple(row) for row in route(NativeOps(library), mixture, noise(64, HIDDEN)).experts_TA.tolist()}
    assert chosen == {(0, 1, 5), (0, 1, 2)}


def test_rows_that_are_no_numbers_have_experts_too(library: NativeLibrary):
    mixture, x_TD = Mixture.of(SPECS["groups"]), noise(9, HIDDEN)
    x_TD[3], x_TD[5, 7] = float("nan"), float("inf")
    routes = route(NativeOps(library), mixture, x_TD)
    for chosen in routes.experts_TA[:9].tolist():
        assert chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < mixture.spec.count
    assert sorted(routes.pairs_J[:27].tolist()) == list(range(27))
