"""N-gram speculation with real models: the same tokens, text, logprobs and bits as without, in fewer steps.

The model is tiny and random, and attends to one token only: greedy outputs soon repeat themselves, so that many draft
tokens are accepted, and at a low temperature they sometimes leave the loop. The clock of the engines does not advance,
so the cost model does not depend on the machine.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.contract.engine_status import EngineStats
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from tests.checkpoints import tiny
from tests.engine.culprits import Culprits
from tests.engine.driving import LogitRecorder, Run, build, generate, request
from tests.engine.execute.faulty_runner import FaultyRunner
from tests.engine.execute.injected_faults import InjectedFaults
from tests.quantized_models import QUANTIZED, quantized_model

LogitsOfPrompts = dict[tuple[int, ...], dict[int, Tensor]]


def engine(longest: int, **settings: object) -> Engine:
    """An engine whose sequences have up to `longest` draft tokens."""
    return build_timeless(tiny("Mistral", sliding_window=1), speculative_ngram=longest, **settings)


def build_timeless(model: Path | str, *, faults: FaultyRunner | None = None, **settings: object) -> Engine:
    """An engine whose steps take no time."""
    built = build(model, **{"itl_target": 0.0, **settings})
    built.runner._clock = lambda: 0.0
    if faults is not None:
        faults.wrap(built)
    return built


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, 290), k=length)


def outputs(run: Run) -> dict[tuple[str, int], tuple]:
    """All tokens, text and logprobs by request and choice, with deltas joined."""
    received: dict[tuple[str, int], list] = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            tokens, text, logprobs = received.setdefault((event.request_id, event.choice), [[], "", []])
            assert event.first == len(tokens) + 1, "the token numbers of a choice have a gap"
            tokens += event.token_ids
            received[event.request_id, event.choice] = [
                tokens,
                text + event.text,
                logprobs + list(event.logprobs or ()),
            ]
    ends = {(e.request_id, e.choice): (e.reason, e.usage.completion_tokens) for e in run.events if is_end(e)}
    return {key: (*map(str, received.get(key, ())), *end) for key, end in ends.items()}


def is_end(event: object) -> bool:
    assert not isinstance(event, RequestFailed)
    return isinstance(event, Finished)


def run_requests(built: Engine, requests: list[EngineRequest], waits: int = 0, pauses: tuple[int, ...] = ()) -> Run:
    """Run requests that arrive `waits` steps apart until all end; pause the first one at the steps `pauses`."""
    run = Run(built)
    for each in requests:
        run.add(each)
        run.step(waits)
    for step in range(40 if pauses else 0):
        if step in pauses:
            built.pause(requests[0].id)
        run.step()
        built.resume(requests[0].id)
    run.finish()
    return run


KINDS = {
    "greedy": {},
    "seeded": {"temperature": 0.2, "seed": 3},
    "filtered": {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "seed": 4},
    "penalties": {"repetition_penalty": 1.02, "frequency_penalty": 0.01},
    "sampled penalties": {"temperature": 0.3, "presence_penalty": 0.2, "seed": 5},
    "minimum length": {"min_tokens": 30, "ignore_eos": False, "logit_bias": {1: 3.0, 2: 3.0}},
    "biased": {"temperature": 0.3, "logit_bias": {17: 4.0}, "seed": 6},
    "logprobs": {"temperature": 0.2, "logprobs": 3, "seed": 7},
    "several choices": {"temperature": 0.3, "n": 3, "seed": 8},
    "best of": {"temperature": 0.3, "n": 2, "best_of": 4, "seed": 9},
    "beams": {"use_beam_search": True, "n": 2, "beam_width": 3},
    "stop ids": {"stop_token_ids": [17, 40, 80, 120, 160, 200, 240]},
    "stop strings": {"stop": ("e a", "th", "in")},
}


def make_request(built: Engine, kind: str, number: int, num_prompt: int, max_tokens: int) -> EngineRequest:
    params = dict(KINDS[kind])
    if "min_tokens" in params:
        params["min_tokens"] = min(params["min_tokens"], max_tokens)
    prompt = prompt_of(60, number % 2)[:num_prompt]
    return request(built, f"{kind} {number}", prompt, max_tokens=max_tokens, **params)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_is_the_same_with_and_without_speculation(kind: str):
    found, num_steps = [], []
    for longest in (0, 8):
        built = engine(longest, num_kv_blocks=64)
        found.append(
            outputs(run_requests(built, [make_request(built, kind, number, 9 + number, 70) for number in range(2)]))
        )
        num_steps.append(built.num_steps)
    assert found[0] == found[1]
    assert num_steps[1] <= num_steps[0]
    assert (built.stats().speculation.num_accepted_tokens > 0) == (kind != "beams")


def test_outputs_are_the_same_after_preemption_faults_and_pauses():
    """With preemption, swaps, shared and cached blocks, chunks, pauses, and steps that raise and are replayed."""
    seen: Counter[str] = Counter()
    for seed in range(12):
        stats = check_history(seed)
        seen.update(
            drafted=stats.speculation.num_draft_tokens, accepted=stats.speculation.num_accepted_tokens,
            preempted=stats.preemption.num_preemptions, found=stats.starts.num_prefix_hits,
            faults=stats.recovery.num_faults,
        )  # fmt: skip
    assert seen["drafted"] > seen["accepted"] > 100
    assert all(seen[kind] > 0 for kind in ("preempted", "found", "faults")), seen


def check_history(seed: int) -> EngineStats:
    """Run the same requests with and without speculation; return the statistics of the former."""
    rng = random.Random(seed)
    kinds = rng.choices(sorted(KINDS), k=rng.randint(2, 7))
    lengths = [rng.choice((1, 20, 40, 60)) for _ in kinds]
    block_size = rng.choice((8, 16, 32))
    given = {
        "block_size": block_size,
        "num_kv_blocks": rng.choice((400, 400, 2000)) // block_size,
        "max_num_batched_tokens": rng.choice((16, 24, 96)),
        "max_num_seqs": rng.choice((4, 6, 16)),
        "enable_prefix_caching": rng.random() < 0.7,
        "swap_space": rng.choice((0, 2**23)),
        "enforce_eager": rng.random() < 0.3,
    }
    max_tokens, waits, longest = rng.choice((20, 50, 80)), rng.randint(0, 3), rng.choice((1, 3, 8, 64))
    hook, raises = rng.choice(("before_launch", "before_sample", "before_result")), rng.sample(range(3, 60), 2)
    pauses = tuple(rng.sample(range(40), 3))
    found = []
    for num_draft in (0, longest):
        built = engine(num_draft, **given, faults=InjectedFaults(**{hook: raises}) if num_draft else None)
        requests = [make_request(built, kind, number, lengths[number], max_tokens) for number, kind in enumerate(kinds)]
        found.append(outputs(run_requests(built, requests, waits, pauses if num_draft else ())))
        stats = built.stats()
        assert stats.blocks.num_free == stats.blocks.num_blocks and stats.recovery.num_culprits == 0
    assert found[0] == found[1], f"seed {seed}"
    return stats


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model", ["Llama", "Mistral", "Qwen3"])
def test_logits_of_draft_tokens_have_the_bits_of_single_steps(model: str, dtype: str):
    """With a vocabulary so small that some draft tokens are accepted."""
    fields = {"sliding_window": 19} if model == "Mistral" else {}
    seen = []
    for longest in (0, 8):
        built = build_timeless(tiny(model, vocab_size=12, **fields), dtype=dtype, speculative_ngram=longest)
        recorder = LogitRecorder(built)
        prompts = [random.Random(seed).choices(range(12), k=9) for seed in range(2)]
        generate(built, [request(built, str(i), prompt, max_tokens=120) for i, prompt in enumerate(prompts)])
        seen.append(recorder.logits)
    assert built.stats().speculation.num_draft_tokens > built.stats().speculation.num_accepted_tokens > 10
    check_same_bits(*seen)


def check_same_bits(expected: LogitsOfPrompts, found: LogitsOfPrompts) -> None:
    assert expected.keys() == found.keys()
    for prompt, logits in expected.items():
        assert logits.keys() == found[prompt].keys()
        assert all(torch.equal(logits[position], found[prompt][position]) for position in logits)


@pytest.mark.parametrize("name", QUANTIZED)
def test_logits_of_draft_tokens_of_a_quantized_model_have_the_bits_of_single_steps(name: str):
    """Products of eight rows and more have another kernel than those of one."""
    seen = []
    for longest in (0, 8):
        built = build_timeless(**quantized_model(name, window=1), speculative_ngram=longest)
        recorder = LogitRecorder(built)
        requests = [request(built, str(i), prompt_of(9, i), max_tokens=150) for i in range(2)]
        generate(built, requests)
        seen.append(recorder.logits)
    assert built.stats().speculation.num_draft_tokens >= built.stats().speculation.num_accepted_tokens > 10
    check_same_bits(*seen)


def test_a_repetitive_output_takes_half_of_the_steps():
    num_steps = {}
    for longest in (0, 8):
        built = engine(longest)
        generate(built, [request(built, "x", prompt_of(20), max_tokens=300)])
        num_steps[longest] = built.num_steps
    assert num_steps[0] == 300 and num_steps[8] < 150


def test_speculation_works_with_one_seat():
    built = engine(8, max_num_seqs=1)
    generate(built, [request(built, "x", prompt_of(20), max_tokens=300)])
    assert built.num_steps < 150


def test_accepted_tokens_after_a_stop_string_are_not_sent():
    """The stop string is part of the repeated text: it ends the output within accepted draft tokens."""
    plain = engine(0)
    run = run_requests(plain, [request(plain, "x", prompt_of(20), max_tokens=300)])
    text = "".join(event.text for event in run.events if isinstance(event, TokenDelta))
    stop = text[-8:-4]
    assert text.count(stop) > 5
    found = []
    for longest in (0, 8):
        built = engine(longest)
        given = request(built, "x", prompt_of(20), max_tokens=300, stop=(stop,))
        found.append(outputs(run_requests(built, [given])))
    assert found[0] == found[1]
    assert found[0]["x", 0][-2] == "stop" and stop not in found[0]["x", 0][1]


def test_draft_tokens_are_not_counted_as_tokens_of_a_step():
    built = engine(8)
    run = Run(built)
    run.add(request(built, "x", prompt_of(20), max_tokens=200))
    run.step()
    assert run.counts == (20, 0)
    while built.has_ready_work:
        run.step()
        assert run.counts in ((0, 1), (0, 0))
    stats = built.stats()
    counts = stats.speculation
    assert 0 < counts.num_drafts <= counts.num_accepted_tokens <= counts.num_draft_tokens
    assert built.num_steps + counts.num_accepted_tokens == 200


def test_a_culprit_with_draft_tokens_fails_alone():
    """A draft token reaches the position that raises first, in a step that begins before it."""
    healthy = engine(0)
    expected = generate(healthy, [request(healthy, "good", prompt_of(20, 1), max_tokens=120)])["good"]
    culprits = Culprits({tuple(prompt_of(20)): 100})
    built = engine(16, faults=culprits)
    run = Run(built)
    run.add(
        request(built, "bad", prompt_of(20), max_tokens=200), request(built, "good", prompt_of(20, 1), max_tokens=120)
    )
    run.finish()
    assert isinstance(run.end("bad"), RequestFailed) and isinstance(run.end("good"), Finished)
    assert run.tokens("good") == expected
    assert len(run.tokens("bad")) >= 80 - 1 and built.stats().recovery.num_culprits == 1


def test_an_abort_between_drafts_frees_all_blocks():
    built = engine(8)
    run = Run(built)
    run.add(request(built, "x", prompt_of(20), max_tokens=300))
    while built.stats().speculation.num_drafts < 3:
        run.step()
    run.events += built.abort("x", 0.0)
    run.finish()
    assert built.stats().blocks.num_free == built.stats().blocks.num_blocks


def test_the_second_turn_finds_accepted_draft_tokens():
    """Prompt and output, except for the output's last token: accepted draft tokens are computed tokens like others."""
    built = engine(8)
    first = prompt_of(20)
    output = generate(built, [request(built, "first", first, max_tokens=101)])["first"]
    assert built.stats().speculation.num_accepted_tokens > 30
    run = Run(built)
    run.add(request(built, "second", (*first, *output, 5, 6), max_tokens=30))
    run.finish()
    assert run.end("second").usage.cached_tokens == 120 // 16 * 16
    cold = engine(0)
    assert (
        run.tokens("second")
        == generate(cold, [request(cold, "second", (*first, *output, 5, 6), max_tokens=30)])["second"]
    )


def test_requests_of_two_salts_share_no_blocks():
    built = engine(8)
    given = request(built, "a", prompt_of(40), max_tokens=60)
    run = Run(built)
    for number, salt in enumerate(("a", "b")):
        run.add(replace(given, id=str(number), cache_salt=salt))
        run.finish()
    assert run.tokens("0") == run.tokens("1") and run.end("1").usage.cached_tokens == 0
