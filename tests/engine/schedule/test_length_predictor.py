"""The predictor of output lengths: learning, forgetting and its measured accuracy."""

import math
import random

import pytest

from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule import length_predictor
from app.engine.schedule.length_predictor import LengthPredictor

KINDS = {"chat": (161, 338, 1.0), "classify": (400, 6, 0.4), "summary": (900, 120, 0.4), "code": (60, 600, 0.6)}
"""Mean prompt length, mean output length and spread of four applications."""


def log_normal(rng: random.Random, mean: float, sigma: float = 1.0) -> int:
    return min(1024, max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))


def make_request(num_prompt: int = 8, tenant: str | None = None, max_tokens: int = 1024) -> EngineRequest:
    return EngineRequest("r", (1,) * num_prompt, SamplingParams(max_tokens=max_tokens), 0.0, tenant=tenant)


def learn_mix(predictor: LengthPredictor, num_requests: int, *, by_tenant: bool) -> None:
    rng = random.Random(0)
    for _ in range(num_requests):
        name, (prompt, output, sigma) = rng.choice(list(KINDS.items()))
        request = make_request(log_normal(rng, prompt, 0.3), name if by_tenant else None)
        predictor.learn(request, log_normal(rng, output, sigma))


def learn(predictor: LengthPredictor, request: EngineRequest, lengths: list[int]) -> None:
    for length in lengths:
        predictor.learn(request, length)


def test_the_first_prediction_is_within_max_tokens():
    predictor = LengthPredictor()
    assert 1 < predictor.predict(make_request()) < 1024
    assert predictor.predict(make_request(max_tokens=5)) == pytest.approx(5)
    assert predictor.accuracy.num_requests == 0


def test_the_prediction_is_the_geometric_mean_of_the_lengths():
    predictor = LengthPredictor()
    learn(predictor, make_request(), [50, 200] * 100)
    assert predictor.predict(make_request()) == pytest.approx(100, rel=0.1)


def test_a_prediction_never_exceeds_max_tokens():
    predictor = LengthPredictor()
    learn(predictor, make_request(max_tokens=1024), [900] * 20)
    assert predictor.predict(make_request(max_tokens=16)) == pytest.approx(16)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (make_request(tenant="a"), make_request(tenant="b")),
        (make_request(num_prompt=10), make_request(num_prompt=1000)),
        (make_request(max_tokens=100), make_request(max_tokens=1000)),
    ],
    ids=["tenant", "prompt length", "max_tokens"],
)
def test_requests_are_distinguished_by(short, long):
    predictor = LengthPredictor()
    for _ in range(100):
        predictor.learn(short, 10)
        predictor.learn(long, 90)
    assert predictor.predict(short) == pytest.approx(10, rel=0.1)
    assert predictor.predict(long) == pytest.approx(90, rel=0.1)


def test_an_unknown_kind_is_predicted_from_the_nearest_one():
    predictor = LengthPredictor()
    learn(predictor, make_request(tenant="a", num_prompt=10), [20] * 100)
    learn(predictor, make_request(tenant="b", num_prompt=10), [400] * 100)
    assert predictor.predict(make_request(tenant="a", num_prompt=900)) == pytest.approx(20, rel=0.2)
    assert 20 < predictor.predict(make_request(tenant="new")) < 400.5


def test_one_request_of_a_new_kind_does_not_outweigh_the_others():
    predictor = LengthPredictor()
    learn(predictor, make_request(tenant="a"), [100] * 100)
    learn(predictor, make_request(tenant="b"), [1, 100])
    assert predictor.predict(make_request(tenant="b")) > 25


def test_the_prediction_follows_a_drift():
    predictor = LengthPredictor()
    learn(predictor, make_request(), [10] * 1000)
    learn(predictor, make_request(), [640] * 100)
    assert predictor.predict(make_request()) == pytest.approx(640, rel=0.4)


def test_independent_lengths_are_predicted_as_well_as_by_their_mean():
    predictor, rng = LengthPredictor(), random.Random(0)
    for _ in range(3000):
        predictor.learn(make_request(log_normal(rng, 161), rng.choice("abcd")), log_normal(rng, 338))
    accuracy = predictor.accuracy
    assert accuracy.num_requests == 3000
    assert accuracy.error == pytest.approx(accuracy.constant_error, rel=0.03), "not much worse either"
    assert accuracy.rank == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("by_tenant", "most", "rank"), [(True, 0.45, 0.75), (False, 0.75, 0.65)])
def test_a_mix_of_applications_is_predicted_better_than_by_the_mean(by_tenant, most, rank):
    predictor = LengthPredictor()
    learn_mix(predictor, 2000, by_tenant=by_tenant)
    accuracy = predictor.accuracy
    assert accuracy.error < most * accuracy.constant_error
    assert accuracy.rank > rank


def test_a_perfect_prediction_reports_no_error_and_a_perfect_order():
    predictor = LengthPredictor()
    short, long = make_request(tenant="a"), make_request(tenant="b")
    for _ in range(3000):
        predictor.learn(short, 8)
        predictor.learn(long, 512)
    accuracy = predictor.accuracy
    assert accuracy.error < 0.15 < 2.5 < accuracy.constant_error
    assert accuracy.rank > 0.99


def test_constant_lengths_have_no_order_to_get_right():
    predictor = LengthPredictor()
    learn(predictor, make_request(), [8] * 100)
    assert predictor.accuracy.rank == 0.0, "no pair has been compared"


def test_the_least_recently_used_kinds_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(length_predictor, "_MAX_BUCKETS", 8)
    predictor = LengthPredictor()
    for number in range(100):
        learn(predictor, make_request(tenant=f"t{number}"), [100 + number] * 20)
        learn(predictor, make_request(tenant="steady"), [5, 5])
    assert len(predictor._means) <= 8
    assert predictor.predict(make_request(tenant="steady")) == pytest.approx(5, rel=0.2)
