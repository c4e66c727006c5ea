"""Tokens that grammars leave no choice about: several from one step, and the answers of single steps.

The clock of the engines does not advance, so the cost model does not depend on the machine.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from app.contract.engine_status import EngineStats
from app.contract.events import Finished, TokenDelta
from app.contract.grammar import ReasoningMarks
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.engine.schedule.step_plan import StepPlan
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import choose_tools
from app.text.calls.formats import FORMATS
from tests.checkpoints import tiny
from tests.engine.constrained import Constrained, answer_all
from tests.engine.driving import LogitRecorder, Run, build, request
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.execute.injected_faults import InjectedFaults

KEYS = ("first_name", "house_number", "registered")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        KEYS[0]: {"type": "string", "maxLength": 4},
        KEYS[1]: {"type": "integer", "minimum": 0, "maximum": 20},
        KEYS[2]: {"type": "boolean"},
    },
    "required": list(KEYS),
    "additionalProperties": False,
}
FORCED: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"choice": ["an answer of several words", "another answer"]},
    {"regex": "the number is [0-9]{2}, and the letter is [a-f]"},
    {"grammar": 'start: "begin " inner " end"\ninner: "left side" | "right side"'},
]
FREE = {"regex": "[a-z ]{20,30}"}
PROMPT = random.Random(3).choices(range(4, 290), k=23)
OPEN, CLOSE = 70, 71


class SparingFaults(InjectedFaults):
    """Puts a fault off that would hit a request alone for the second time: without a token between it is the culprit.

    Which requests are alone in a step depends on when the masks of the others come.
    """

    def wrap(self, engine: Engine) -> None:
        self._scheduler = engine.scheduler
        self._hit_alone: set[str] = set()
        super().wrap(engine)

    def may_hit(self, plan: StepPlan) -> bool:
        ids = set(plan.chunks.sequence_ids)
        hit = {group.request.id for group in self._scheduler.groups if any(each.id in ids for each in group.open)}
        if len(hit) == 1 and hit <= self._hit_alone:
            return False
        self._hit_alone |= hit if len(hit) == 1 else set()
        return True


def engine_for(model: str = "Mistral", *, faults: FaultyRunner | None = None, **settings: Any) -> Engine:
    """An engine over a tiny random model."""
    built = build(tiny(model, sliding_window=8), **{"itl_target": 0.0, **settings})
    built.runner._clock = lambda: 0.0
    if faults is not None:
        faults.wrap(built)
    return built


def outputs(run: Run) -> dict[tuple[str, int], tuple]:
    """Tokens, text, logprobs, end and usage by request and choice, with deltas joined."""
    received: dict[tuple[str, int], list] = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            known = received.setdefault((event.request_id, event.choice), [[], "", []])
            assert event.first == len(known[0]) + 1, "the token numbers of a choice have a gap"
            known[0] += event.token_ids
            known[1] += event.text
            known[2] += event.logprobs or ()
    ends = [event for event in run.events if isinstance(event, Finished)]
    return {
        (end.request_id, end.choice): (
            *map(str, received.get((end.request_id, end.choice), ())), end.reason, end.usage.completion_tokens
        )
        for end in ends
    }  # fmt: skip


def run_all(engine: Engine, requests: list[EngineRequest], steps_between: int = 0) -> dict[tuple[str, int], tuple]:
    """Run requests to their ends."""
    run = Run(engine)
    for each in requests:
        run.add(each)
        run.step(steps_between)
    run.finish()
    stats = engine.stats()
    assert stats.blocks.num_free == stats.blocks.num_blocks
    return outputs(run)


def every_kind(engine: Engine, made: Constrained) -> list[EngineRequest]:
    """Requests of every kind that a grammar may meet, and some without one."""
    found = [
        made.request(f"{number} {temperature}", PROMPT[number:], wanted, temperature=temperature, seed=number)
        for number, wanted in enumerate([*FORCED, FREE])
        for temperature in (0.0, 1.0)
    ]
    found += [
        made.request("logprobs", PROMPT, FORCED[0], logprobs=3),
        made.request("choices", PROMPT, FORCED[1], n=3, logprobs=1),
        made.request("best of", PROMPT, FORCED[0], n=1, best_of=3),
        made.request("penalties", PROMPT, FORCED[0], frequency_penalty=0.5, repetition_penalty=1.2, logprobs=2),
        made.request("biased", PROMPT, FORCED[2], logit_bias={5: -100.0, 90: 3.0}),
        made.request("cut", PROMPT, FORCED[0], max_tokens=7),
        made.request("stop text", PROMPT, FORCED[0], stop=("ouse",)),
        made.request("stop id", PROMPT, FORCED[0], stop_token_ids=[80, 81, 82, 83, 84, 85, 86]),
        request(engine, "plain", PROMPT, max_tokens=30, temperature=0.8, seed=7, logprobs=2),
        request(engine, "plain penalties", PROMPT[3:], max_tokens=30, presence_penalty=0.4),
    ]
    return found


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], tuple]:
    """What requests answer one after the other, one token in a step."""
    engine = engine_for(speculative_grammar=False)
    found = {
        key: value for each in every_kind(engine, Constrained(engine)) for key, value in run_all(engine, [each]).items()
    }
    assert engine.stats().speculation.num_drafts == 0
    return found


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("settings", [{}, {"speculative_ngram": 3}], ids=str)
@pytest.mark.parametrize("steps_between", [0, 2])
def test_outputs_logprobs_and_usage_are_those_of_single_steps(alone: dict, settings: dict, steps_between: int):
    engine = engine_for(**settings)
    assert run_all(engine, every_kind(engine, Constrained(engine)), steps_between) == alone
    stats = engine.stats()
    assert stats.speculation.num_accepted_tokens >= stats.speculation.num_forced_tokens > 100


def test_outputs_of_torch_are_those_of_single_steps():
    found = []
    for on in (False, True):
        engine = engine_for(speculative_grammar=on, enforce_eager=True)
        found.append(run_all(engine, every_kind(engine, Constrained(engine))))
    assert found[0] == found[1] and engine.stats().speculation.num_forced_tokens > 100


@pytest.mark.usefixtures("masks_everywhere")
def test_outputs_are_the_same_after_preemption_faults_and_pauses(alone: dict):
    """With swaps, shared and cached blocks, chunks, pauses, and steps that raise and are replayed."""
    seen: Counter[str] = Counter()
    for seed in range(8):
        stats = check_history(alone, seed)
        seen.update(
            forced=stats.speculation.num_forced_tokens, preempted=stats.preemption.num_preemptions,
            swapped=stats.preemption.num_swaps, faults=stats.recovery.num_faults,
        )  # fmt: skip
    assert seen["forced"] > 200
    assert all(seen[kind] > 0 for kind in ("preempted", "swapped", "faults")), seen


def check_history(alone: dict, seed: int) -> EngineStats:
    """Run some of the requests through interruptions, compare their outputs, and return the statistics."""
    rng = random.Random(seed)
    hook = rng.choice(("before_launch", "before_sample", "before_result"))
    engine = engine_for(
        block_size=8,
        num_kv_blocks=rng.choice((30, 30, 60)),
        max_num_batched_tokens=rng.choice((16, 96)),
        max_num_seqs=rng.choice((6, 16)),
        enable_prefix_caching=rng.random() < 0.7,
        swap_space=rng.choice((0, 2**23)),
        speculative_ngram=rng.choice((0, 0, 3)),
        faults=SparingFaults(**{hook: set(rng.sample(range(3, 40, 9), 3))}),
    )
    engine.scheduler.tables.swap.block_s = 0.0  # swapping is always cheaper than recomputing
    requests = rng.sample(every_kind(engine, made := Constrained(engine)), k=9)
    assert made.leases
    run = Run(engine)
    for each in requests:
        run.add(each)
        run.step(rng.randint(0, 2))
    for _ in range(25):
        paused = rng.choice(requests).id
        engine.pause(paused)
        run.step(rng.randint(1, 2))
        engine.resume(paused)
    run.finish()
    names = {each.id for each in requests}
    assert outputs(run) == {key: value for key, value in alone.items() if key[0] in names}, f"seed {seed}"
    return engine.stats()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["Llama", "Mistral", "Qwen3"])
def test_logits_of_forced_tokens_have_the_bits_of_single_steps(model: str, dtype: str):
    seen = []
    for on in (False, True):
        engine = engine_for(model, dtype=dtype, speculative_grammar=on)
        recorder, made = LogitRecorder(engine), Constrained(engine)
        answer_all(engine, [made.request(str(i), PROMPT[i:], wanted) for i, wanted in enumerate(FORCED)])
        seen.append(recorder.logits)
    assert engine.stats().speculation.num_forced_tokens > 20
    assert seen[0].keys() == seen[1].keys()
    for prompt, logits in seen[0].items():
        assert logits.keys() <= seen[1][prompt].keys(), "behind an answer's last token there may be one more"
        assert all(torch.equal(logits[position], seen[1][prompt][position]) for position in logits)


@pytest.mark.usefixtures("masks_everywhere")
def test_every_forced_token_is_accepted_and_counted_once():
    """But for those after the last token of an answer."""
    num_steps, stats = {}, {}
    for on in (False, True):
        engine = engine_for(speculative_grammar=on)
        made, run = Constrained(engine), Run(engine)
        run.add(made.request("one", PROMPT, FORCED[0]))
        run.finish()
        num_steps[on], stats[on] = engine.num_steps, engine.stats().speculation
    assert stats[True].num_draft_tokens == stats[True].num_accepted_tokens == stats[True].num_forced_tokens
    assert num_steps[True] + stats[True].num_forced_tokens == num_steps[False]
    assert 2 * num_steps[True] < num_steps[False]


@pytest.mark.usefixtures("masks_everywhere")
def test_required_calls_take_fewer_steps():
    tool = {
        "type": "function",
        "function": {"name": "find_a_train", "parameters": {**SCHEMA, "required": list(KEYS)}},
    }
    grammar = choose_tools([tool], "required", False, FORMATS["hermes"]).grammar(AnswerFormat(FORMATS["hermes"]))
    assert grammar is not None
    found, num_steps = [], []
    for on in (False, True):
        engine = engine_for(speculative_grammar=on)
        lease = engine.grammars.lease(grammar)
        plain = Constrained(engine).request("call", PROMPT, max_tokens=90)
        called = EngineRequest("call", plain.prompt_token_ids, plain.params, 0.0, grammar=grammar)
        found.append(run_all(engine, [called]))
        num_steps.append(engine.num_steps)
        lease.release()
    assert found[0] == found[1] and "find_a_train" in found[0]["call", 0][1]
    assert 2 * num_steps[1] < num_steps[0]


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("is_inside", [True, False])
def test_nothing_is_forced_while_the_model_reasons(is_inside: bool):
    """Until it has closed its block; where it may begin one, the grammar's first token is not forced either."""
    engine = engine_for()
    made, marks = Constrained(engine), ReasoningMarks(OPEN, CLOSE, is_inside=is_inside)
    bias = {OPEN: 100.0, CLOSE: -100.0}
    run = Run(engine)
    run.add(made.request("one", PROMPT, {"choice": ["yes"]}, marks=marks, logit_bias=bias, max_tokens=30))
    run.finish()
    assert len(run.tokens("one")) == engine.num_steps == 30
    assert engine.stats().speculation.num_drafts == 0


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("is_inside", [True, False])
def test_the_mark_that_a_budget_demands_is_forced(budget: int, is_inside: bool):
    found, stats = [], None
    for on in (False, True):
        engine = engine_for(speculative_grammar=on)
        made, marks = Constrained(engine), ReasoningMarks(OPEN, CLOSE, is_inside=is_inside)
        given = {"marks": marks, "thinking_token_budget": budget, "max_tokens": 25}
        bias = {CLOSE: -100.0, OPEN: 0.0 if is_inside else 100.0, engine.model_info.eos_token_ids[0]: -100.0}
        found.append(
            run_all(
                engine,
                [
                    made.request("both", PROMPT, {"choice": ["yes indeed"]}, logit_bias=bias, **given),
                    made.request("alone", PROMPT, logit_bias=bias, **given),
                ],
            )
        )
        stats = engine.stats()
    assert found[0] == found[1] and "yes indeed" in found[0]["both", 0][1]
    assert stats is not None and stats.speculation.num_forced_tokens > 0


def test_one_seat_leaves_no_room_for_forced_tokens():
    """Draft tokens need rows of logits that no sequence has."""
    engine = engine_for(max_num_seqs=1)
    made = Constrained(engine)
    run_all(engine, [made.request("one", PROMPT, FORCED[0])])
    assert engine.stats().speculation.num_drafts == 0


def test_a_failing_grammar_fails_at_the_same_token(masks_everywhere: str):
    """The parser of this grammar has ever more readings of a text, most of which is forced."""
    ambiguous = 'start: a\na: a a a | a a | "xy"'
    lengths = []
    for on in (False, True):
        engine = engine_for(speculative_grammar=on)
        bias = {engine.model_info.eos_token_ids[0]: -100.0}
        run = Run(engine)
        made = Constrained(engine)
        run.add(made.request("bad", PROMPT, {"grammar": ambiguous}, max_tokens=225, logit_bias=bias))
        run.finish()
        lengths.append(len(run.tokens("bad")))
        assert engine.grammars.failures["limit"] == 1
    # Another process says afterwards that a token cannot be taken, so the next step is the first one without a token.
    assert lengths[0] > 20 and abs(lengths[0] - lengths[1]) <= (masks_everywhere != "local")
