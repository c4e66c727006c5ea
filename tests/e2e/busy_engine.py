"""A made-up engine that has something to show in every part of the live view."""

import random

from tests.e2e.live_messages import CACHED, FENCED, PINNED, SHARED, USED, MadeUpEngine

NUM_BLOCKS = 480
PREFIX = range(1, 9)  # of three requests
LANES = (*["running"] * 7, "paused", "swapped", "preempted", "waiting", "waiting")
NUM_STEPS = 120


def busy_engine() -> MadeUpEngine:
    """An engine with requests in every lane, whose blocks lie among cached ones, and the steps of the last seconds."""
    chance = random.Random(4)
    engine = MadeUpEngine(NUM_BLOCKS)
    engine.set(PINNED, range(9, 15))
    first = 16
    for number, state in enumerate(LANES, 1):
        prompt, output = chance.randrange(40, 400), chance.randrange(1, 120)
        has_blocks = state in ("running", "paused")
        runs, tokens = [], prompt + output if has_blocks else 0
        if has_blocks:
            runs = [PREFIX.start, len(PREFIX)] if number <= 3 else []
            for size in (chance.randrange(3, 12), chance.randrange(2, 20)):
                engine.set(USED, range(first, first + size), owner=number)
                runs += [first, size]
                first += size + chance.randrange(0, 6)
            tokens = 16 * sum(runs[1::2]) - chance.randrange(16)
            prompt = tokens - output if tokens > output else prompt
        computed = {"swapped": prompt + output, "waiting": 0, "preempted": 0}.get(state, tokens)
        engine.add(
            number, state, prompt=prompt, cached=16 * len(PREFIX) if number in (2, 3) else 0, computed=computed,
            output=0 if state == "waiting" else output, tables=[[0, tokens, runs]] if has_blocks else [],
            preemptions=int(state in ("swapped", "preempted")), swaps=int(state == "swapped"),
        )  # fmt: skip
    engine.set(SHARED, PREFIX, owner=3)
    free = [at for at, (state, _) in enumerate(engine.cells, 1) if state == 0]
    engine.set(CACHED, sorted(chance.sample(free[: len(free) // 2], 90)))
    engine.set(FENCED, free[-6:-2])
    engine.host = {"total": 64, "used": 22, "owners": [[9, 22]]}
    engine.figures = {
        "tokens_per_s": 212.4, "prompt_tokens_per_s": 640.0, "hit_rate": 0.37, "step_ms": 31.8, "swaps": 1,
        "preemptions": 2, "steps_over_target": 3,
        "first_token_ms": {"p50": 96.0, "p95": 240.0, "p99": 410.0},
        "between_tokens_ms": {"p50": 32.0, "p95": 47.0, "p99": 61.0},
    }  # fmt: skip
    for at in range(NUM_STEPS):
        running = range(1 + at // 40, 8)
        reads = at % 17 == 3
        shares = [
            (n, 64 if reads and n == running[-1] else 0, int(not (reads and n == running[-1])), 0) for n in running
        ]
        ms = chance.uniform(24, 38) + 24 * reads
        engine.step(ms, *shares, over=ms > 50)
    engine.copy(8, 40)
    return engine
