"""The requests of the benchmark `gpu`. No torch."""

from __future__ import annotations

import random

from app.commands.measuring.workload import Workload

NUM_REQUESTS, VOCAB = 256, 10_000
TEMPERATURE = 0.6
"""As nano-vllm's benchmark has it."""


def load_256() -> Workload:
    """nano-vllm's 256 requests: 142,827 tokens in, 133,966 out. Only this order of random numbers gives them."""
    rng = random.Random(0)
    prompts = tuple(tuple(rng.randint(0, VOCAB) for _ in range(rng.randint(100, 1024))) for _ in range(NUM_REQUESTS))
    return Workload(prompts, tuple(rng.randint(100, 1024) for _ in range(NUM_REQUESTS)))


def uniform_load(num_requests: int, num_prompt: int, num_new: int) -> Workload:
    """Requests of one length in and one out."""
    rng = random.Random(0)
    prompts = tuple(tuple(rng.choices(range(VOCAB), k=num_prompt)) for _ in range(num_requests))
    return Workload(prompts, (num_new,) * num_requests)


def turned(load: Workload, turn: int) -> Workload:
    """The same lengths with other ids, so that nothing is found in a prefix cache; `turn` 0 is the load itself."""
    prompts = tuple(tuple((token + turn) % (VOCAB + 1) for token in prompt) for prompt in load.prompts)
    return Workload(prompts, load.num_new_tokens)
