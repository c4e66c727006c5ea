"""Blocks found in the prefix cache change no token and no log-probability, greedy or sampled, in any batch.

Others: vllm#5543, vllm#7845, vllm#40896 and vllm#54490 (cold and warm outputs differ at temperature 0),
tenstorrent/vllm#415 (outputs from cached blocks are garbage). All bits of the logits: tests/engine/test_equal_bits.py.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from app.contract.events import Finished, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from tests.checkpoints import tiny
from tests.engine.driving import Run, build, request

SIZE = 16
NUM_NEW = 20
COMMON = tuple(random.Random(7).choices(range(4, 290), k=70))
# Tokens of the common prefix, and further tokens: around the boundaries of blocks, and the prefix alone.
PROMPTS = [(1, 4), (SIZE - 1, 1), (SIZE, 0), (SIZE, 1), (SIZE + 1, 2), (33, 30), (48, 0), (64, 3), (70, 0), (70, 90)]
NAMES = [f"{number}{kind}" for number in range(len(PROMPTS)) for kind in ("greedy", "sampled")]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}

Outputs = dict[str, list[tuple[int, float]]]
"""Token ids and their log-probabilities by request."""


def requests_of(engine: Engine) -> list[EngineRequest]:
    """Each prompt twice: greedy and sampled."""
    requests = []
    for name in NAMES:
        number = int(name.removesuffix("greedy").removesuffix("sampled"))
        num_common, num_own = PROMPTS[number]
        own = random.Random(number).choices(range(4, 290), k=num_own)
        params = {"seed": number, **SAMPLED} if name.endswith("sampled") else {}
        prompt = (*COMMON[:num_common], *own)
        requests.append(request(engine, name, prompt, max_tokens=NUM_NEW, logprobs=2, **params))
    return requests


def engine(**settings: object) -> Engine:
    return build(tiny("Qwen2"), **{"num_kv_blocks": 256, "itl_target": 0.0, **settings})


def run_all(engine: Engine, requests: list[EngineRequest], *, at_once: bool = False) -> tuple[Outputs, int]:
    """Run requests one after the other, or all in one batch; also return how many tokens were found in the cache."""
    run = Run(engine)
    for each in requests:
        run.add(each)
        if not at_once:
            run.finish()
    run.finish()
    found: Outputs = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            entries = event.logprobs or ()
            found.setdefault(event.request_id, []).extend((e.token_id, e.logprob) for e in entries)
    return found, sum(event.usage.cached_tokens for event in run.events if isinstance(event, Finished))


@pytest.fixture(scope="module")
def cold() -> Outputs:
    """The outputs of an engine without a prefix cache."""
    uncached = engine(enable_prefix_caching=False)
    found, num_cached = run_all(uncached, requests_of(uncached))
    assert num_cached == 0 and all(len(found[name]) == NUM_NEW for name in NAMES)
    assert len({tuple(found[name]) for name in NAMES}) == len(NAMES), "equal outputs would prove little"
    return found


@pytest.mark.parametrize("settings", [{}, {"block_size": 8}, {"swap_space": 2**21}], ids=["16", "8", "host memory"])
def test_cold_warm_and_batched_outputs_are_the_same(cold: Outputs, settings: dict[str, object]):
    built = engine(**settings)
    filling, _ = run_all(built, requests_of(built))
    warm, num_found = run_all(built, requests_of(built))
    assert filling == warm == cold
    most = sum((length - 1) // SIZE * SIZE for length in (len(each.prompt_token_ids) for each in requests_of(built)))
    assert num_found >= most, "a warm engine finds every full block of every prompt"
    for batched in (built, engine(**settings)):
        assert run_all(batched, requests_of(batched), at_once=True)[0] == cold


def test_outputs_are_the_same_while_blocks_are_evicted_all_the_time(cold: Outputs):
    """A pool that holds two of the longest requests: each request finds other blocks, always with the right content."""
    built = engine(num_kv_blocks=24, max_num_seqs=8)
    rng = random.Random(1)
    for turn in range(3):
        shuffled = rng.sample(requests_of(built), len(NAMES))
        found, num_found = run_all(built, shuffled, at_once=turn == 2)
        assert found == cold
        assert num_found > 0
    assert built.stats().preemption.num_preemptions > 0


def test_equal_tokens_in_another_context_are_not_found():
    """The same tokens at another position, after another token, with another salt, with another API key."""
    built = engine()
    run_all(built, [request(built, "first", COMMON, max_tokens=1)])
    same = request(built, "same", COMMON, max_tokens=1)
    unrelated = [
        request(built, "after another token", (5, *COMMON), max_tokens=1),
        request(built, "at another position", COMMON[SIZE:], max_tokens=1),
        replace(same, id="with another salt", cache_salt="mine"),
        replace(same, id="with another key", tenant="key-2"),
    ]
    assert run_all(built, unrelated)[1] == 0
    assert run_all(built, [same])[1] == len(COMMON) // SIZE * SIZE
