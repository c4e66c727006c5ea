"""The operations of experts in eager torch: equal to the reference, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch

from app.checkpoint.spec import ExpertSpec, RouterScores
from app.kernels.cpu.torch_ops import TorchOps
from tests.kernels.batches import noise
from tests.kernels.reference import ReferenceOps
from tests.kernels.routed import HIDDEN, SPECS, Mixture, compute, route

COUNTS = (1, 2, 7, 64)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@pytest.mark.parametrize("num_rows", COUNTS)
@pytest.mark.parametrize("name", SPECS)
def test_routes_are_those_of_the_reference(name: str, num_rows: int):
    mixture, x_TD = Mixture.of(SPECS[name]), noise(num_rows, HIDDEN, seed=num_rows)
    ours, expected = route(TorchOps(), mixture, x_TD), route(ReferenceOps(), mixture, x_TD)
    num_pairs = num_rows * mixture.spec.per_token
    assert torch.equal(ours.experts_TA[:num_rows], expected.experts_TA[:num_rows])
    assert torch.equal(ours.starts_E1, expected.starts_E1) and int(ours.starts_E1[-1]) == num_pairs
    assert torch.equal(ours.pairs_J[:num_pairs], expected.pairs_J[:num_pairs])
    torch.testing.assert_close(ours.scores_TA[:num_rows], expected.scores_TA[:num_rows], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.shared_T[:num_rows], expected.shared_T[:num_rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_results_are_those_of_the_reference(name: str, dtype: torch.dtype):
    mixture = Mixture.of(SPECS[name], dtype)
    for num_rows in COUNTS:
        x_TD = noise(num_rows, HIDDEN, dtype=dtype, seed=num_rows)
        ours, expected = compute(TorchOps(), mixture, x_TD), compute(ReferenceOps(), mixture, x_TD)
        torch.testing.assert_close(ours, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_a_row_has_its_bits_alone_and_in_any_company_and_order(name: str, dtype: torch.dtype):
    mixture, ops = Mixture.of(SPECS[name], dtype), TorchOps()
    x_TD = noise(64, HIDDEN, dtype=dtype, seed=1)
    whole = compute(ops, mixture, x_TD)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(compute(ops, mixture, x_TD[order]), whole[order])
    for row in range(0, 64, 9):
        assert torch.equal(compute(ops, mixture, x_TD[row : row + 1]), whole[row : row + 1])
    assert torch.equal(compute(ops, mixture, x_TD[5:12]), whole[5:12])


@pytest.mark.parametrize("ops", [TorchOps(), ReferenceOps()], ids=["torch", "reference"])
def test_one_expert_may_have_all_rows_and_others_none(ops: TorchOps):
    mixture = Mixture.of(ExpertSpec(count=6, per_token=2, width=24))
    mixture.router_ED.zero_()
    mixture.router_ED[4, 0], mixture.router_ED[2, 1] = 1.0, 1.0
    x_TD = noise(64, HIDDEN, seed=3).abs()
    routes = route(ops, mixture, x_TD)
    assert routes.starts_E1.tolist() == [0, 0, 0, 64, 64, 128, 128]
    assert routes.experts_TA[:64].tolist() == [[2, 4]] * 64
    assert torch.equal(compute(ops, mixture, x_TD[9:10]), compute(ops, mixture, x_TD)[9:10])


@pytest.mark.parametrize("ops", [TorchOps(), ReferenceOps()], ids=["torch", "reference"])
@pytest.mark.parametrize("scores", RouterScores)
def test_equal_scores_go_to_the_lowest_number(scores: RouterScores, ops: TorchOps):
    spec = ExpertSpec(count=8, per_token=3, width=24, scores=scores, groups=4, groups_per_token=2)
    mixture = Mixture.of(spec)
    mixture.correction_E = None
    mixture.router_ED.copy_(mixture.router_ED[:1].expand(8, HIDDEN))
    routes = route(ops, mixture, noise(9, HIDDEN))
    assert routes.experts_TA[:9].tolist() == [[0, 1, 2]] * 9
    assert routes.starts_E1.tolist() == [0, 9, 18, 27, 27, 27, 27, 27, 27]
    mixture.router_ED[5] *= 2  # the group of 4 and 5 comes first for half of the rows
    chosen = {tuple(row) for row in route(ops, mixture, noise(64, HIDDEN)).experts_TA.tolist()}
    assert chosen == {(0, 1, 5), (0, 1, 2)}


def test_a_group_is_chosen_by_its_two_best_experts():
    spec = ExpertSpec(6, 2, 24, RouterScores.SIGMOID, is_normalized=True, scale=3.0, groups=2, groups_per_token=1)
    mixture = Mixture.of(spec)
    mixture.correction_E = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, 0.0])
    # The best expert is in the second group; the two best sum to 1.4 in the first and to 1.3 + 0 in the second.
    wanted = torch.tensor([0.7, 0.7, 0.1, 0.4, 0.2, 0.2])
    mixture.router_ED.zero_()
    mixture.router_ED[:, 0] = wanted.logit()
    x_TD = torch.zeros(1, HIDDEN)
    x_TD[0, 0] = 1.0
    for ops in (TorchOps(), ReferenceOps()):
        routes = route(ops, mixture, x_TD)
        assert routes.experts_TA[0].tolist() == [0, 1]
        torch.testing.assert_close(routes.scores_TA[0], torch.tensor([1.5, 1.5]))
        mixture.correction_E[4] = 0.4  # 0.9 + 0.6
        routes = route(ops, mixture, x_TD)
        assert routes.experts_TA[0].tolist() == [3, 4]
        torch.testing.assert_close(routes.scores_TA[0], torch.tensor([2.0, 1.0]))
        mixture.correction_E[4] = 0.0
