"""An answer that was told in part goes on behind it with the tokens, text, logprobs and end that it has undisturbed."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.grammar import ReasoningMarks
from app.contract.requests import EngineRequest, ToldChoice
from app.engine.engine import Engine
from tests.cases import long
from tests.engine.constrained import Constrained
from tests.engine.driving import Run, request
from tests.engine.test_grammars import CLOSE, OPEN, WANTED, engine_for
from tests.engine.told_answers import Answer, answers_of, go_on, turns_of

PROMPT = random.Random(7).choices(range(4, 290), k=21)
SAMPLED = {"temperature": 1.0, "seed": 5}
LONG = {"max_tokens": 24, "ignore_eos": True}
CASES: dict[str, dict[str, Any]] = {
    "greedy": LONG,
    "seeded": {**LONG, **SAMPLED},
    "may end": {**SAMPLED, "max_tokens": 60, "ignore_eos": False, "logit_bias": {1: 4.0}},
    "top": {**LONG, **SAMPLED, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {**LONG, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    "logprobs": {**LONG, **SAMPLED, "logprobs": 3},
    "least": {**SAMPLED, "max_tokens": 24, "min_tokens": 12, "ignore_eos": False, "logit_bias": {1: 9.0}},
    "three": {**LONG, **SAMPLED, "n": 3, "logprobs": 0},
    "three that end": {**SAMPLED, "max_tokens": 30, "n": 3, "ignore_eos": False, "logit_bias": {1: 4.0}},
    "one token": {**LONG, "max_tokens": 1},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "warm": {},
    "cold": {"enable_prefix_caching": False},
    "chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 16},
    "pressure": {"num_kv_blocks": 30, "block_size": 8, "max_num_seqs": 8},
    "swapping": {"num_kv_blocks": 30, "block_size": 8, "max_num_seqs": 8, "swap_space": 2**23},
    "drafts": {"speculative_ngram": 3},
}


@cache
def plain_engine() -> Engine:
    return engine_for()


def with_stop_strings(engine: Engine) -> dict[str, Any]:
    """Stop strings that occur, begin, and begin and go on otherwise in the greedy answer."""
    [answer] = answers_of(chain.from_iterable(turns_of(engine, request(engine, "greedy", PROMPT, **LONG))), 1)
    text = answer.text
    assert len(text) > 12
    return {**LONG, "stop": [text[8:12], f"{text[2:4]}\0", f"{text[5:7]}\0"], "logprobs": 1}


def told_request(asked: EngineRequest, *told: ToldChoice) -> EngineRequest:
    return replace(asked, told=told)


def beginnings_of(turns: list[list[Any]], n: int) -> list[list[Answer]]:
    """What is told after each turn, while a choice goes on."""
    told = [answers_of(chain.from_iterable(turns[:count]), n) for count in range(len(turns))]
    return [answers for answers in told if any(answer.end is None for answer in answers)]


def check(engine: Engine, asked: EngineRequest, turns: list[list[Any]], num_cuts: int = 100) -> None:
    """Check that the request goes on after each turn as it did undisturbed."""
    whole = answers_of(chain.from_iterable(turns), asked.params.n)
    assert all(answer.end is not None for answer in whole)
    beginnings = beginnings_of(turns, asked.params.n)
    beginnings = beginnings[:: max(1, len(beginnings) // num_cuts)]
    for begun, found in zip(beginnings, go_on(engine, asked, beginnings), strict=True):
        assert found == whole, f"told before: {[answer.token_ids for answer in begun]}"
    assert not engine.output.num_open and engine.stats().blocks.num_free == engine.stats().blocks.num_blocks


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", [*CASES, "stop"])
def test_an_answer_goes_on_behind_every_turn(case: str, setting: str):
    engine = engine_for(**SETTINGS[setting])
    if SETTINGS[setting].get("swap_space"):
        engine.scheduler.tables.swap.block_s = 0.0
    params = with_stop_strings(plain_engine()) if case == "stop" else CASES[case]
    turns = turns_of(plain_engine(), request(plain_engine(), "whole", PROMPT, **params))
    if case == "stop":
        assert sum(not any(isinstance(event, TokenDelta) for event in turn) for turn in turns) > 1, "none is held back"
    check(engine, request(engine, "whole", PROMPT, **params), turns)


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("number", range(len(WANTED)))
def test_a_grammar_goes_on_behind_every_turn(number: int):
    engine = engine_for()
    asked = Constrained(engine)
    for params in ({"temperature": 0.0}, {"n": 2, "seed": 3}):
        turns = turns_of(engine, whole := asked.request("whole", PROMPT, WANTED[number], **params))
        check(engine, whole, turns, num_cuts=12)


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("is_inside", [True, False])
def test_reasoning_and_its_budget_go_on_behind_every_turn(is_inside: bool):
    engine = engine_for()
    marks = ReasoningMarks(OPEN, CLOSE, is_inside=is_inside)
    bias = {OPEN: 0.0 if is_inside else 50.0, CLOSE: -100.0, engine.model_info.eos_token_ids[0]: -100.0}
    asked = Constrained(engine)
    for wanted in ({"choice": ["yes"]}, None):
        params = {"thinking_token_budget": 6, "logit_bias": bias, "max_tokens": 20}
        turns = turns_of(engine, whole := asked.request("whole", PROMPT, wanted, marks=marks, **params))
        check(engine, whole, turns)


def test_a_repetition_ends_an_answer_at_the_same_token():
    engine = engine_for()
    whole = request(engine, "whole", PROMPT, repetition_stop=True, max_tokens=300, logit_bias={9: 100.0})
    turns = turns_of(engine, whole)
    [answer] = answers_of(chain.from_iterable(turns), 1)
    assert len(answer.token_ids) == 256
    check(engine, whole, turns, num_cuts=8)


@pytest.mark.parametrize("num_examples", [40, long(400)])
def test_choices_go_on_behind_any_numbers_of_tokens(num_examples: int):
    """Choices are told independently: some not at all, some to their ends."""
    histories: dict[tuple[object, ...], tuple[EngineRequest, list[list[Answer]]]] = {}
    asked = Constrained(plain_engine())

    def states_of(n: int, seed: int, number: int | None, num_prompt: int) -> tuple[EngineRequest, list[list[Answer]]]:
        key = (n, seed, number, num_prompt)
        if key not in histories:
            wanted = None if number is None else WANTED[number]
            whole = asked.request("whole", PROMPT[:num_prompt], wanted, n=n, seed=seed, max_tokens=30, logprobs=1)
            turns = turns_of(plain_engine(), whole)
            states = [answers_of(chain.from_iterable(turns[:count]), n) for count in range(len(turns) + 1)]
            histories[key] = whole, states
        return histories[key]

    @settings(max_examples=num_examples)
    @given(data=st.data())
    def check_example(data: st.DataObject) -> None:
        n, seed = data.draw(st.integers(1, 4), label="n"), data.draw(st.integers(0, 3), label="seed")
        number = data.draw(st.sampled_from([None, None, 0, 1, 3, 5]), label="grammar")
        whole, states = states_of(n, seed, number, data.draw(st.sampled_from([1, 15, 16, 17, 21]), label="prompt"))
        size = data.draw(st.sampled_from([8, 16]), label="block size")
        engine = engine_for(
            block_size=size, num_kv_blocks=data.draw(st.sampled_from([4 * 64 // size, 64])), max_num_seqs=8
        )
        leases = Constrained(engine)
        if whole.grammar is not None:
            leases.leases.append(engine.grammars.lease(whole.grammar))
        cuts = data.draw(st.lists(st.integers(0, len(states) - 1), min_size=n, max_size=n), label="turns")
        begun = [states[cut][choice] for choice, cut in enumerate(cuts)]
        if all(answer.end is not None for answer in begun):
            begun[0] = Answer()
        [found] = go_on(engine, whole, [begun])
        assert found == states[-1]

    check_example()


def test_the_next_token_comes_with_the_step_that_computes_what_was_told():
    engine = engine_for()
    whole = request(engine, "whole", PROMPT, max_tokens=200, **SAMPLED)
    [answer] = answers_of(chain.from_iterable(turns_of(engine, whole)), 1)
    fresh = engine_for(enable_prefix_caching=False)
    run = Run(fresh)
    run.add(told_request(request(fresh, "told", PROMPT, max_tokens=200, **SAMPLED), ToldChoice(answer.token_ids[:150])))
    while not run.events:
        run.step()
    assert fresh.num_steps <= 4, "the told tokens are a prompt, in a few chunks"
    [delta] = run.events
    assert isinstance(delta, TokenDelta) and (delta.first, delta.token_ids) == (151, answer.token_ids[150:151])
    run.finish()
    end = run.end("told")
    assert isinstance(end, Finished) and end.usage.completion_tokens == 200


def test_cached_tokens_are_those_of_the_prompt():
    engine = engine_for()
    whole = request(engine, "whole", PROMPT, max_tokens=100)
    [answer] = answers_of(chain.from_iterable(turns_of(engine, whole)), 1)
    run = Run(engine)
    run.add(told_request(request(engine, "again", PROMPT, max_tokens=100), ToldChoice(answer.token_ids[:90])))
    run.finish()
    end = run.end("again")
    assert isinstance(end, Finished) and end.usage.cached_tokens == len(PROMPT)
    assert engine.stats().starts.num_prefix_hits == len(PROMPT)


@pytest.mark.parametrize(
    ("params", "told", "message"),
    [
        ({"n": 2}, [ToldChoice((5,))], "told has 1 choices; it must have one for each of n 2."),
        ({"best_of": 2}, [ToldChoice((5,))], "An answer of best_of or a beam search goes on from its prompt alone."),
        ({}, [ToldChoice(has_ended=True)], "All choices in told have ended; at least one must go on."),
        ({"max_tokens": 3}, [ToldChoice((5, 6, 7))], "told has a choice of 3 tokens that goes on; max_tokens 3 must"),
        ({}, [ToldChoice((5, 307))], "Token ids in told must be between 0 and 306."),
        ({"ignore_eos": False}, [ToldChoice((5, 1, 6))], "The answer cannot go on: it ends with tokens that were told"),
    ],
)
def test_what_cannot_be_told_fails_its_request(params: dict[str, Any], told: list[ToldChoice], message: str):
    engine = plain_engine()
    run = Run(engine)
    run.add(told_request(request(engine, "bad", PROMPT, **params), *told))
    end = run.end("bad")
    assert isinstance(end, RequestFailed) and end.error.message.startswith(message)
    assert not engine.has_ready_work and not engine.output.num_open
