"""Answers under grammars: they satisfy them, and have the same tokens in any batch and after any interruption."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.contract.events import Finished, RequestFailed
from app.contract.grammar import ReasoningMarks
from app.engine.engine import Engine
from tests.checkpoints import damaged_copy, tiny
from tests.engine.constrained import Constrained, answer_all, answers
from tests.engine.driving import Run, build, request

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
WANTED: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"regex": r"[a-c]{3,9}-\d{2}"},
    {"choice": ["yes", "no", "maybe so"]},
    {"grammar": 'start: "(" inner* ")"\ninner: "x" | start'},
    {"grammar": 'root ::= ("ab" | "cd") [0-9]+ "!"'},
    {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}},
]
PROMPT = random.Random(3).choices(range(4, 290), k=23)


def engine_for(**settings: Any) -> Engine:
    """An engine over a tiny random model; its clock does not advance, so drafts do not depend on the machine."""
    return build(tiny("Mistral", sliding_window=8), **{"itl_target": 0.0, **settings})


def requests_for(engine: Engine) -> tuple[Constrained, list]:
    """A request for each grammar, greedy and not, and one with three choices."""
    made = Constrained(engine)
    found = [
        made.request(f"{number}-{temperature}", PROMPT[number:], wanted, temperature=temperature, seed=number)
        for number, wanted in enumerate(WANTED)
        for temperature in (0.0, 1.0)
    ]
    found.append(made.request("three", PROMPT, WANTED[0], n=3))
    found.append(made.request("best", PROMPT, WANTED[1], n=1, best_of=2))
    found.append(made.request("biased", PROMPT, WANTED[5], frequency_penalty=1.0, logit_bias={5: -100.0}))
    return made, found


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], tuple]:
    """The answers of requests that run one after the other, one token in a step."""
    engine = engine_for(speculative_grammar=False)
    _, requests = requests_for(engine)
    return {key: value for each in requests for key, value in answer_all(engine, [each]).items()}


def satisfies(text: str, wanted: dict[str, Any]) -> bool:
    """Whether a text is what was asked for."""
    if "regex" in wanted:
        return re.fullmatch(wanted["regex"], text) is not None
    if "choice" in wanted:
        return text in wanted["choice"]
    if "json" in wanted:
        value = json.loads(text)
        return isinstance(value, dict if wanted["json"]["type"] == "object" else list)
    if "::=" in wanted["grammar"]:
        return re.fullmatch(r"(ab|cd)[0-9]+!", text) is not None
    return text.startswith("(") and text.count("(") == text.count(")")


def test_answers_that_stop_satisfy_their_grammar(alone: dict):
    stopped = [key for key, (_, _, end) in alone.items() if end == "stop"]
    assert len(stopped) >= len(WANTED)
    for name, choice in stopped:
        number = {"three": 0, "best": 1, "biased": 5}.get(name) if "-" not in name else int(name[0])
        assert number is not None
        assert satisfies(alone[name, choice][1], WANTED[number]), alone[name, choice]


@pytest.mark.usefixtures("masks_everywhere")
def test_an_answer_that_is_complete_with_the_last_token_it_may_have_stops(alone: dict):
    """However late that is known; with one token less it is cut."""
    engine = engine_for()
    made, requests, wanted = Constrained(engine), [], {}
    for number in (1, 2):
        for temperature in (0.0, 1.0):
            name = f"{number}-{temperature}"
            tokens, _, end = alone[name, 0]
            assert end == "stop"
            for most, reason in ((len(tokens), "stop"), (len(tokens) - 1, "length")):
                fields = {"temperature": temperature, "seed": number, "max_tokens": most}
                requests.append(made.request(f"{name} {reason}", PROMPT[number:], WANTED[number], **fields))
                wanted[f"{name} {reason}", 0] = (tokens[:most], reason)
    found = answer_all(engine, requests)
    assert {key: (tokens, end) for key, (tokens, _, end) in found.items()} == wanted
    assert engine.stats().blocks.num_free == engine.stats().blocks.num_blocks


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize(
    ("settings", "steps_between"),
    [
        ({}, 0),
        ({}, 2),
        ({"speculative_grammar": False}, 1),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 16}, 1),
        ({"speculative_ngram": 3}, 0),
        ({"speculative_ngram": 3, "max_num_seqs": 5}, 1),
        ({"num_kv_blocks": 30, "block_size": 8, "max_num_seqs": 8}, 0),
        ({"num_kv_blocks": 30, "block_size": 8, "max_num_seqs": 8, "swap_space": 2**23}, 0),
        ({"enforce_eager": True, "speculative_ngram": 3}, 0),
    ],
    ids=["together", "apart", "one by one", "chunks", "drafts", "drafts apart", "preempted", "swapped", "torch"],
)
def test_answers_do_not_depend_on_the_company(alone: dict, settings: dict[str, Any], steps_between: int):
    engine = engine_for(**settings)
    if settings.get("swap_space"):
        engine.scheduler.tables.swap.block_s = 0.0  # swapping is always cheaper than recomputing
    _, requests = requests_for(engine)
    assert answer_all(engine, requests, steps_between=steps_between) == alone
    stats = engine.stats()
    if "num_kv_blocks" in settings:
        assert stats.preemption.num_preemptions > 0
    if "swap_space" in settings:
        assert stats.preemption.num_swaps > 0
    assert (stats.speculation.num_forced_tokens > 0) == settings.get("speculative_grammar", True)
    if "speculative_ngram" in settings and not settings.get("enforce_eager"):
        assert stats.speculation.num_draft_tokens > stats.speculation.num_forced_tokens


@pytest.mark.usefixtures("masks_everywhere")
def test_a_paused_request_goes_on_where_it_was(alone: dict):
    engine = engine_for()
    made = Constrained(engine)
    run = Run(engine)
    run.add(made.request("0-1.0", PROMPT, WANTED[0], seed=0))
    for _ in range(12):
        run.step(2)
        engine.pause("0-1.0")
        run.step(1)
        engine.resume("0-1.0")
    run.finish()
    assert answers(run)["0-1.0", 0] == alone["0-1.0", 0]


@pytest.mark.usefixtures("masks_everywhere")
def test_other_requests_have_the_tokens_they_have_without_grammars():
    def plain(engine: Engine, with_grammars: bool) -> dict:
        made = Constrained(engine)
        requests = [made.request(f"plain {i}", PROMPT[i:], temperature=float(i % 2), seed=i) for i in range(4)]
        if with_grammars:
            requests += requests_for(engine)[1]
        return {key: value for key, value in answer_all(engine, requests).items() if key[0].startswith("plain")}

    assert plain(engine_for(), True) == plain(engine_for(), False)


@pytest.mark.usefixtures("masks_everywhere")
def test_the_end_of_the_grammar_ends_the_answer_and_its_token_is_counted():
    engine = engine_for()
    run = Run(engine)
    run.add(Constrained(engine).request("one", PROMPT, {"choice": ["x"]}))
    run.finish()
    end = run.end("one")
    assert isinstance(end, Finished) and end.reason == "stop"
    assert answers(run)["one", 0][1] == "x" and end.usage.completion_tokens == len(run.tokens("one")) == 1


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}], ids=str)
def test_without_an_end_token_a_complete_draft_ends_the_answer(settings: dict[str, Any], tmp_path: Path):
    """Behind the draft nothing is allowed that the model has, and what is sampled there is no failure."""
    folder = damaged_copy(tiny("Mistral", sliding_window=8, eos_token_id=None), tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    engine = build(folder, itl_target=0.0, **settings)
    assert engine.model_info.eos_token_ids == ()
    made, run = Constrained(engine), Run(engine)
    run.add(made.request("one", PROMPT, {"choice": ["hello world"]}))
    run.add(request(engine, "beams", PROMPT, use_beam_search=True, beam_width=2, max_tokens=30))  # sampled on the host
    run.finish()
    assert answers(run)["one", 0][1:] == ("hello world", "stop") and isinstance(run.end("beams"), Finished)
    stats = engine.stats()
    assert stats.speculation.num_forced_tokens > 0 and stats.num_nan_requests == 0


@pytest.mark.usefixtures("masks_everywhere")
def test_a_grammar_that_reaches_a_limit_fails_its_request_alone():
    """The parser of this grammar has ever more readings of the text."""
    engine = engine_for()
    made = Constrained(engine)
    run = Run(engine)
    ambiguous = 'start: a\na: a a | "x"'
    endless = {"max_tokens": 250, "logit_bias": {engine.model_info.eos_token_ids[0]: -100.0}}
    bad = made.request("bad", PROMPT, {"grammar": ambiguous}, **endless)
    assert bad.grammar is not None
    run.add(replace(bad, grammar=replace(bad.grammar, param="ebnf")))  # the lease is of the grammar without its field
    run.add(made.request("good", PROMPT, WANTED[0]))
    run.finish()
    failed = run.end("bad")
    assert isinstance(failed, RequestFailed) and failed.error.code == "invalid_value"
    assert failed.error.param == "ebnf"
    assert failed.error.message == (
        "The answer cannot go on because of ebnf: it has too many alternatives or readings at one place. "
        "Send a simpler one."
    )
    assert isinstance(run.end("good"), Finished)
    assert engine.grammars.failures["limit"] == 1 and engine.stats().num_nan_requests == 0


def test_a_request_whose_grammar_was_dropped_fails():
    engine = engine_for()
    made = Constrained(engine)
    request = made.request("one", PROMPT, {"choice": ["x"]})
    made.leases.clear()
    engine.grammars.entries._drop(request.grammar)
    run = Run(engine)
    run.add(request, made.request("two", PROMPT, {"choice": ["y"]}))
    run.finish()
    failed = run.end("one")
    assert isinstance(failed, RequestFailed) and failed.error.code == "engine_error"
    assert isinstance(run.end("two"), Finished)


# --- Reasoning -----------------------------------------------------------------------------------------------------

OPEN, CLOSE = 70, 71


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("settings", [{}, {"speculative_ngram": 3}, {"enforce_eager": True}], ids=str)
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_closes_the_reasoning(settings: dict[str, Any], budget: int):
    engine = engine_for(**settings)
    made, marks = Constrained(engine), ReasoningMarks(OPEN, CLOSE, is_inside=True)
    bias = {CLOSE: -100.0, engine.model_info.eos_token_ids[0]: -100.0}
    found = answer_all(
        engine,
        [
            made.request(
                "both", PROMPT, {"choice": ["yes"]}, marks=marks, thinking_token_budget=budget, logit_bias=bias
            ),
            made.request(
                "alone", PROMPT, None, marks=marks, thinking_token_budget=budget, logit_bias=bias, max_tokens=20
            ),
        ],
    )
    for name in ("both", "alone"):
        tokens = found[name, 0][0]
        assert tokens.index(CLOSE) == budget, tokens
    assert found["both", 0][1].endswith("yes") and found["both", 0][2] == "stop"


@pytest.mark.usefixtures("masks_everywhere")
def test_reasoning_is_free_but_cannot_end_the_answer():
    """The end of the answer is by far the likeliest token, and is forbidden until the grammar is complete."""
    engine = engine_for()
    made, marks = Constrained(engine), ReasoningMarks(OPEN, CLOSE, is_inside=True)
    bias = {engine.model_info.eos_token_ids[0]: 100.0}
    run = Run(engine)
    run.add(made.request("one", PROMPT, {"choice": ["yes"]}, marks=marks, logit_bias=bias, max_tokens=30))
    run.finish()
    assert answers(run)["one", 0][2] == "length" and len(run.tokens("one")) == 30


@pytest.mark.usefixtures("masks_everywhere")
@pytest.mark.parametrize("opens", [True, False])
def test_an_answer_may_begin_with_the_opening_mark_or_with_its_grammar(opens: bool):
    engine = engine_for()
    made, marks = Constrained(engine), ReasoningMarks(OPEN, CLOSE)
    bias = {OPEN: 50.0 if opens else -100.0, CLOSE: 90.0}
    found = answer_all(engine, [made.request("one", PROMPT, {"choice": ["yes"]}, marks=marks, logit_bias=bias)])
    tokens, text, end = found["one", 0]
    assert end == "stop" and text.endswith("yes")
    assert (tokens[0] == OPEN) == opens and (CLOSE in tokens) == opens
