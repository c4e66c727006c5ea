"""Answers under grammars and reasoning budgets that are interrupted at any step go on with the same tokens."""

from __future__ import annotations

import pytest

from app.contract.grammar import ReasoningMarks
from app.engine.engine import Engine
from tests.engine.constrained import Answer, Constrained, answer_all, answers
from tests.engine.driving import Run
from tests.engine.execute.injected_faults import InjectedFaults
from tests.engine.test_grammars import CLOSE, OPEN, PROMPT, WANTED, engine_for

BUDGETS = {"inside": 5, "opens": 3, "free": 4}
"""How many tokens some of the requests may reason."""


def requests_for(engine: Engine) -> tuple[Constrained, list]:
    """Requests with short answers: several choices, penalties, and reasoning that ends when its budget is spent."""
    made = Constrained(engine)
    inside, before = ReasoningMarks(OPEN, CLOSE, is_inside=True), ReasoningMarks(OPEN, CLOSE)
    endless = {CLOSE: -100.0, engine.model_info.eos_token_ids[0]: -100.0}
    given: list[tuple[str, dict | None, dict]] = [
        ("regex", WANTED[1], {"n": 2}),
        ("choice", WANTED[2], {}),
        ("best", WANTED[1], {"best_of": 2}),
        ("biased", WANTED[5], {"frequency_penalty": 1.0, "logit_bias": {5: -100.0}}),
        ("inside", WANTED[2], {"marks": inside, "logit_bias": endless}),
        ("opens", WANTED[2], {"marks": before, "logit_bias": endless | {OPEN: 50.0}}),
        ("free", None, {"marks": inside, "logit_bias": endless}),
    ]
    requests = []
    for number, (name, wanted, fields) in enumerate(given):
        budget = {"thinking_token_budget": BUDGETS[name]} if name in BUDGETS else {}
        requests.append(made.request(name, PROMPT[number:], wanted, seed=number, max_tokens=16, **budget, **fields))
    return made, requests


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], Answer]:
    """The answers of requests that run one after the other, one token in a step."""
    engine = engine_for(speculative_grammar=False)
    _, requests = requests_for(engine)
    return {key: value for each in requests for key, value in answer_all(engine, [each]).items()}


def test_reasoning_ends_when_its_budget_is_spent(alone: dict):
    for name, budget in BUDGETS.items():
        tokens = alone[name, 0][0]
        assert tokens.index(CLOSE) == budget + (name == "opens"), name
        assert (OPEN in tokens) == (name == "opens")
    assert {key: end for key, (_, _, end) in alone.items() if end == "stop"}.keys() >= {("inside", 0), ("opens", 0)}


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("hook", ["before_launch", "before_sample", "before_result"])
def test_a_fault_in_any_step_changes_no_token(alone: dict, hook: str):
    """Each run of the requests has a fault one step later than the run before, until a run has ended earlier."""
    calls: set[int] = set()
    faults = InjectedFaults(**{hook: calls})
    engine = engine_for(faults=faults)
    num_faults = 0
    while engine.stats().recovery.num_faults == num_faults:
        num_faults += 1
        calls.clear()
        calls.add(sum(name == hook for name, _ in faults.seen) + num_faults)
        _made, requests = requests_for(engine)
        assert answer_all(engine, requests) == alone, num_faults
    assert num_faults > 12


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("swap_space", [0, 2**23])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_preemptions_at_any_step_change_no_token(alone: dict, every: int, swap_space: int):
    engine = engine_for(swap_space=swap_space)
    scheduler = engine.scheduler
    scheduler.tables.swap.block_s = 0.0  # swapping is always cheaper than recomputing
    run = Run(engine)
    _made, requests = requests_for(engine)
    run.add(*requests)
    for _ in range(200):
        if not engine.has_ready_work:
            break
        run.step(every)
        for group in [each for each in scheduler.queues.running if not each.is_protected]:
            scheduler.preemption.preempt(group)
    assert answers(run) == alone
    stats = engine.stats()
    assert stats.preemption.num_preemptions > 15 and (stats.preemption.num_swaps > 0) == (swap_space > 0)
