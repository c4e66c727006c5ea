"""Grammars on the GPU path: the masks of a step reach its samples, and steps with them do not run ahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.contract.events import Finished, RequestFailed
from app.contract.grammar import ReasoningMarks
from tests.cases import grid
from tests.engine.constrained import Constrained, answers
from tests.engine.driving import Run
from tests.engine.execute.gpu.gpu_engine import build
from tests.engine.execute.gpu.test_gpu_engine import MODEL, NAN_TOKEN, damaged_by_nan

WANTED: list[dict[str, Any]] = [
    {"choice": ["yes", "no"]},
    {"regex": "[ab]{3}"},
    {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}},
]
PROMPT = [5, 9, 30, 41]


def run_all(engine: Any, requests: list, steps_between: int = 0) -> dict:
    """Run requests to their ends; nothing runs ahead while one of them has a mask."""
    run = Run(engine)
    for each in requests:
        run.add(each)
        run.step(steps_between)
    run.finish()
    return answers(run)


def requests_of(made: Constrained) -> list:
    """One request for each grammar, one with penalties and a bias, and one without a grammar."""
    found = [made.request(f"{i}", PROMPT[i:], wanted, max_tokens=24, seed=i) for i, wanted in enumerate(WANTED)]
    found.append(
        made.request("penalties", PROMPT, WANTED[1], max_tokens=8, frequency_penalty=1.0, logit_bias={68: 2.0})
    )
    found.append(made.request("plain", PROMPT, max_tokens=9, seed=4, temperature=0.7))
    return found


@pytest.fixture(scope="module")
def alone() -> dict:
    """The answers of requests that run one after the other."""
    engine = build(MODEL)
    made = Constrained(engine)
    return {key: value for one in requests_of(made) for key, value in run_all(engine, [one]).items()}


def test_answers_satisfy_their_grammars(alone: dict):
    assert alone["0", 0][1:] in (("yes", "stop"), ("no", "stop"))
    assert set(alone["1", 0][1]) <= set("ab") and len(alone["1", 0][1]) == 3
    assert alone["2", 0][2] == "length" or isinstance(json.loads(alone["2", 0][1]), list)


COMPANIES: dict[str, dict[str, Any]] = {
    "together": {},
    "drafts": {"speculative_ngram": 2},
    "few blocks": {"num_kv_blocks": 10, "run_ahead": 2},
    "forced": {"speculative_grammar": True},
    "forced, few blocks": {"speculative_grammar": True, "num_kv_blocks": 10, "run_ahead": 2},
}


# The companies of `make test` by where masks are made: each feature once, most of them where sequences sit steps out.
USUAL = {
    "local": ("together",),
    "worker": ("forced, few blocks",),
    "late": ("together", "drafts", "forced, few blocks"),
}


@pytest.mark.parametrize(
    ("masks_everywhere", "company"),
    grid(lambda where, company: company in USUAL[where], USUAL, COMPANIES),
    indirect=["masks_everywhere"],
)
def test_answers_do_not_depend_on_the_company(masks_everywhere: str, alone: dict, company: str):
    settings = COMPANIES[company]
    engine = build(MODEL, **settings)
    assert run_all(engine, requests_of(Constrained(engine)), steps_between=1) == alone
    num_forced = engine.stats().speculation.num_forced_tokens
    if settings.get("speculative_grammar"):
        assert num_forced or masks_everywhere == "late", "a mask that is late proposes nothing"
    else:
        assert num_forced == 0


def test_steps_run_ahead_only_without_masks():
    engine = build(MODEL, run_ahead=2)
    made, run = Constrained(engine), Run(engine)
    run.add(made.request("plain", PROMPT, max_tokens=20))
    run.step(3)
    assert len(engine.in_flight) == 2
    run.add(made.request("masked", PROMPT, WANTED[1], max_tokens=20))
    run.step(2)
    assert len(engine.in_flight) == 0
    run.finish()
    assert isinstance(run.end("plain"), Finished) and isinstance(run.end("masked"), Finished)


def test_nothing_left_fails_the_request_alone():
    engine = build(MODEL)
    made, run = Constrained(engine), Run(engine)
    request = made.request("gone", PROMPT, WANTED[0], max_tokens=5)
    made.leases.clear()
    engine.grammars.entries._drop(request.grammar)
    run.add(request, made.request("good", PROMPT, WANTED[1], max_tokens=5))
    run.finish()
    assert isinstance(run.end("gone"), RequestFailed) and isinstance(run.end("good"), Finished)


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_logits_that_are_no_numbers_are_no_mistake_of_the_grammar(tmp_path: Path):
    engine = build(damaged_by_nan(tmp_path))
    made, run = Constrained(engine), Run(engine)
    run.add(made.request("bad", [7, NAN_TOKEN, 8], WANTED[0], max_tokens=5))
    run.finish()
    end = run.end("bad")
    assert isinstance(end, RequestFailed) and end.error.code == "engine_error" and "(NaN)" in end.error.message
    assert engine.stats().num_nan_requests == 1 and engine.grammars.failures["no_token"] == 0


@pytest.mark.usefixtures("masks_everywhere")
def test_a_budget_closes_the_reasoning():
    engine = build(MODEL)
    made, marks = Constrained(engine), ReasoningMarks(70, 71, is_inside=True)
    request = made.request("one", PROMPT, WANTED[1], marks=marks, thinking_token_budget=2, logit_bias={71: -100.0})
    tokens = run_all(engine, [request])["one", 0][0]
    assert tokens.index(71) == 2
