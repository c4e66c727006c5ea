"""Answers that repeat themselves, in the engine: they end at the same token however their steps are made.

The model attends to one token only, so that greedy answers soon go in circles.
"""

from __future__ import annotations

import random

import pytest

from app.contract.events import REPETITION, ChoiceEnd, Finished, FinishReason, TokenDelta
from app.engine.engine import Engine
from tests.checkpoints import tiny
from tests.engine.constrained import Constrained
from tests.engine.driving import Run, build, request
from tests.engine.execute.injected_faults import InjectedFaults
from tests.engine.test_repetition import holds_at

LENGTH = 480
PROMPTS = [random.Random(seed).choices(range(4, 290), k=9) for seed in range(4)]


def engine(**settings: object) -> Engine:
    return build(tiny("Mistral", sliding_window=1), itl_target=0.0, **settings)


def run(built: Engine, *, pauses: bool = False, **params: object) -> Run:
    """Run a request for each prompt; with `pauses` the first one is paused for some of the steps."""
    found = Run(built)
    for number, prompt in enumerate(PROMPTS):
        found.add(request(built, str(number), prompt, max_tokens=LENGTH, **params))
    for step in range(120 if pauses else 0):
        if step % 17 == 5:
            built.pause("0")
        elif step % 17 == 12:
            built.resume("0")
        found.step()
    built.resume("0")
    found.finish(20_000)
    return found


@pytest.fixture(scope="module")
def whole_answers() -> list[list[int]]:
    """The answers that nothing ends."""
    found = run(engine())
    return [found.tokens(str(number)) for number in range(len(PROMPTS))]


WAYS = {
    "together": {},
    "one after the other": {"max_num_seqs": 1},
    "with drafts": {"speculative_ngram": 8},
    "preempted": {"num_kv_blocks": 40},
    "preempted with drafts": {"num_kv_blocks": 40, "speculative_ngram": 8},
    "swapped": {"num_kv_blocks": 40, "swap_space": 2**22},
    "after faults": {"faults": InjectedFaults(before_sample={30, 31, 150}, before_result={90})},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_ends_at_the_same_token_in_every_way(way, whole_answers):
    built = engine(**WAYS[way])
    built.scheduler.tables.swap.block_s = 0.0  # swapping is always cheaper than recomputing
    found = run(built, pauses=way == "together", repetition_stop=True)
    ends = [holds_at(tokens) for tokens in whole_answers]
    assert None not in ends, "the answers of this test go in circles"
    assert [found.tokens(str(number)) for number in range(len(PROMPTS))] == [
        tokens[:end] for tokens, end in zip(whole_answers, ends, strict=True)
    ]
    for number, end in enumerate(ends):
        finished = found.end(str(number))
        assert isinstance(finished, Finished)
        assert finished.end == ChoiceEnd(FinishReason.LENGTH, REPETITION)
        assert finished.usage.completion_tokens == end
    stats = built.stats()
    assert stats.blocks.num_free == stats.blocks.num_blocks
    assert ("preempted" in way) <= (stats.preemption.num_preemptions > 0)
    assert ("swapped" in way) <= (stats.preemption.num_swaps > 0)
    assert ("drafts" in way) <= (stats.speculation.num_accepted_tokens > 0)


@pytest.mark.parametrize("params", [{"n": 3}, {"n": 1, "best_of": 3}])
def test_each_of_several_choices_ends_by_itself(params):
    """At a temperature their loops begin at different places."""
    given = {"temperature": 0.2, "seed": 5, "max_tokens": LENGTH, "logprobs": 1, **params}
    ends = []
    for stops in (False, True):
        found = Run(built := engine())
        found.add(request(built, "a", PROMPTS[0], repetition_stop=stops, **given))
        found.finish()
        tokens: dict[int, list[int]] = {}
        for event in found.events:
            if isinstance(event, TokenDelta):
                tokens.setdefault(event.choice, []).extend(event.token_ids)
                assert [entry.token_id for entry in event.logprobs or ()] == list(event.token_ids)
        ends.append(tokens)
    whole, stopped = ends
    if "best_of" not in params:  # another candidate may be the best once they end
        assert stopped == {choice: tokens[: holds_at(tokens)] for choice, tokens in whole.items()}
    assert all(len(tokens) == (holds_at(tokens) or LENGTH) for tokens in stopped.values())


def test_an_answer_with_a_grammar_ends_too():
    found = Run(built := engine())
    made = Constrained(built)
    found.add(made.request("a", PROMPTS[0], {"regex": "(ab){9000}"}, max_tokens=LENGTH, repetition_stop=True))
    found.finish()
    finished = found.end("a")
    assert isinstance(finished, Finished)
    assert finished.end == ChoiceEnd(FinishReason.LENGTH, REPETITION)
    assert finished.usage.completion_tokens == holds_at(found.tokens("a"))
