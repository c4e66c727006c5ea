"""What is found in the prefix cache changes no token and no log-probability, greedy or drawn, in any company.

Others: vllm#5543, vllm#7845, vllm#40896 and vllm#54490 (cold and warm answers differ at temperature 0),
tenstorrent/vllm#415 (answers from cached blocks are garbage). All bits of the logits: tests/engine/test_equal_bits.py.
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
# Of the common beginning, with how many tokens of their own: around the borders of blocks, and nothing but it.
PROMPTS = [(1, 4), (SIZE - 1, 1), (SIZE, 0), (SIZE, 1), (SIZE + 1, 2), (33, 30), (48, 0), (64, 3), (70, 0), (70, 90)]
NAMES = [f"{number}{kind}" for number in range(len(PROMPTS)) for kind in ("greedy", "drawn")]
DRAWN = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}

Answers = dict[str, list[tuple[int, float]]]
"""Token ids and their log-probabilities by request."""


def requests_of(engine: Engine) -> list[EngineRequest]:
    """Each prompt greedy and drawn."""
    made = []
    for name in NAMES:
        number = int(name.removesuffix("greedy").removesuffix("drawn"))
        num_common, num_own = PROMPTS[number]
        own = random.Random(number).choices(range(4, 290), k=num_own)
        params = {"seed": number, **DRAWN} if name.endswith("drawn") else {}
        prompt = (*COMMON[:num_common], *own)
        made.append(request(engine, name, prompt, max_tokens=NUM_NEW, logprobs=2, **params))
    return made


def engine(**settings: object) -> Engine:
    return build(tiny("Qwen2"), **{"num_kv_blocks": 256, "itl_target": 0.0, **settings})


def answers(engine: Engine, requests: list[EngineRequest], *, at_once: bool = False) -> tuple[Answers, int]:
    """Run requests one after the other, or all in one batch; also return how many tokens were found in the cache."""
    run = Run(engine)
    for each in requests:
        run.add(each)
        if not at_once:
            run.finish()
    run.finish()
    found: Answers = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            entries = event.logprobs or ()
            found.setdefault(event.request_id, []).extend((e.token_id, e.logprob) for e in entries)
    return found, sum(event.usage.cached_tokens for event in run.events if isinstance(event, Finished))


@pytest.fixture(scope="module")
def cold() -> Answers:
    """The answers of an engine that keeps nothing."""
    uncached = engine(enable_prefix_caching=False)
    found, num_cached = answers(uncached, requests_of(uncached))
    assert num_cached == 0 and all(len(found[name]) == NUM_NEW for name in NAMES)
    assert len({tuple(found[name]) for name in NAMES}) == len(NAMES), "the answers are alike: this proves little"
    return found


@pytest.mark.parametrize("settings", [{}, {"block_size": 8}, {"swap_space": 2**21}], ids=["16", "8", "host memory"])
def test_cold_warm_evicted_and_crowded_answers_are_the_same(cold: Answers, settings: dict[str, object]):
    built = engine(**settings)
    filling, _ = answers(built, requests_of(built))
    warm, num_found = answers(built, requests_of(built))
    assert filling == warm == cold
    most = sum((length - 1) // SIZE * SIZE for length in (len(each.prompt_token_ids) for each in requests_of(built)))
    assert num_found >= most, "a warm engine finds every full block of every prompt"
    for crowded in (built, engine(**settings)):
        assert answers(crowded, requests_of(crowded), at_once=True)[0] == cold


def test_answers_are_the_same_while_blocks_are_evicted_all_the_time(cold: Answers):
    """A pool that holds two of the longest: every answer finds something else there, and what it finds is right."""
    built = engine(num_kv_blocks=24, max_num_seqs=8)
    rng = random.Random(1)
    for turn in range(3):
        shuffled = rng.sample(requests_of(built), len(NAMES))
        found, num_found = answers(built, shuffled, at_once=turn == 2)
        assert found == cold
        assert num_found > 0
    assert built.stats().num_preemptions > 0


def test_what_only_looks_alike_is_not_found():
    """The same tokens at another place, after another token, under another salt, of another key."""
    built = engine()
    answers(built, [request(built, "first", COMMON, max_tokens=1)])
    same = request(built, "same", COMMON, max_tokens=1)
    strangers = [
        request(built, "after another token", (5, *COMMON), max_tokens=1),
        request(built, "at another place", COMMON[SIZE:], max_tokens=1),
        replace(same, id="under another salt", cache_salt="mine"),
        replace(same, id="of another key", tenant="key-2"),
    ]
    assert answers(built, strangers)[1] == 0
    assert answers(built, [same])[1] == len(COMMON) // SIZE * SIZE
