"""The second turn of a chat, with what the first left in the prefix cache and without: time to its first token.

`python -m benchmarks prefix [--repeat N]` writes `results/prefix.json`, and exits 1 when a limit is missed: the second
turn must start five times sooner, every full block that both turns share must be found, and the tokens be the same.

The s135 shape with random weights; the engine alone, without a server. The first turn is a prompt of 1,000 tokens and
its answer; the second is both and 30 new tokens. It runs once after the first turn, and once after the cache was
emptied. The answers end by length, so their last tokens have no keys and values; the first ones get longer from chat to
chat, past the end of a block.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from app.commands.measuring.machine import machine
from app.commands.options import Parser
from app.contract.admission import admit
from app.contract.events import Finished, TokenDelta
from app.contract.requests import EngineRequest
from app.engine.engine import Engine
from app.runtime.clock import monotonic
from benchmarks.engine_load import greedy, load_model
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import conclude, judge

NUM_PROMPT, NUM_NEW = 1000, 30
FIRST_ANSWER = 53  # tokens, and one more for each chat: from the fourth on they fill one more block
NUM_COMPARED = 16


class Answer(NamedTuple):
    """What came of one request, and how long its first token took: on the clock, and of the engine thread's time."""

    token_ids: list[int]
    first_token_s: float
    first_token_thread_s: float
    num_cached: int


class Pair(NamedTuple):
    """One second turn with and without the first turn's blocks, and the tokens in their full blocks."""

    warm: Answer
    cold: Answer
    num_shared: int

    @property
    def ratio(self) -> float:
        """How much sooner the warm one started."""
        return self.cold.first_token_s / self.warm.first_token_s

    @property
    def faults(self) -> list[str]:
        """The faults besides time."""
        found = []
        if self.warm.num_cached != self.num_shared:
            found.append(f"{self.warm.num_cached} cached tokens instead of {self.num_shared}")
        if self.cold.num_cached:
            found.append(f"{self.cold.num_cached} cached tokens in an empty cache")
        if self.warm.token_ids != self.cold.token_ids:
            found.append("other tokens warm than cold")
        return found


def ask(engine: Engine, request_id: str, prompt: Sequence[int], num_tokens: int) -> Answer:
    """Answer one request, greedily and alone."""
    admitted = admit(prompt, greedy(num_tokens), engine.model_info)
    request = EngineRequest(request_id, tuple(prompt), admitted, monotonic())
    began, began_thread = time.perf_counter(), time.thread_time()
    engine.add(request)
    token_ids: list[int] = []
    first_s, first_thread_s, num_cached = 0.0, 0.0, 0
    while engine.has_ready_work:
        for event in engine.step(monotonic()):
            if isinstance(event, TokenDelta):
                if not token_ids:
                    first_s, first_thread_s = time.perf_counter() - began, time.thread_time() - began_thread
                token_ids += event.token_ids
            elif isinstance(event, Finished):
                num_cached = event.usage.cached_tokens
    assert len(token_ids) == num_tokens, "the answer ended early"
    return Answer(token_ids, first_s, first_thread_s, num_cached)


def chat(engine: Engine, number: int) -> Pair:
    """Have one chat of two turns, the second one twice."""
    rng = random.Random(number)
    cache, size = engine.scheduler.tables.cache, engine.model_info.block_size
    cache.clear()
    prompt = [rng.randrange(engine.model_info.vocab_size) for _ in range(NUM_PROMPT)]
    first = prompt + ask(engine, f"{number}-first", prompt, FIRST_ANSWER + number).token_ids
    second = first + [rng.randrange(engine.model_info.vocab_size) for _ in range(NUM_NEW)]
    warm = ask(engine, f"{number}-warm", second, NUM_COMPARED)
    cache.clear()
    cold = ask(engine, f"{number}-cold", second, NUM_COMPARED)
    return Pair(warm, cold, (len(first) - 1) // size * size)


def add_options(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--repeat", type=int, default=7, help="chats, default 7")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per chat, write the figures, and judge."""
    llm = load_model("s135", num_kv_blocks=512)
    chat(llm.engine, 0)  # learns what steps cost, and how many threads are best
    pairs = []
    for number in range(1, args.repeat + 1):
        pairs.append(pair := chat(llm.engine, number))
        first = f"warm {1e3 * pair.warm.first_token_s:5.0f} ms, cold {1e3 * pair.cold.first_token_s:5.0f} ms"
        print(f"{first}, {pair.ratio:4.1f} times sooner, {pair.warm.num_cached} tokens cached", flush=True)
    verdict = judge("prefix", "second turn sooner", statistics.median(pair.ratio for pair in pairs))
    faults = [f"chat {number}: {fault}" for number, pair in enumerate(pairs, 1) for fault in pair.faults]
    print(verdict)
    missed = [*faults, *(str(verdict) for verdict in [verdict] if verdict.is_missed)]
    written = {"benchmark": "prefix", "machine": machine(), "median_ratio": verdict.figure, "missed": missed}
    write_json(RESULTS / "prefix.json", {**written, "chats": [describe(pair) for pair in pairs]})
    return conclude([verdict], faults)


def describe(pair: Pair) -> dict[str, object]:
    """Return the figures of one chat as they are written."""
    return {
        "ratio": pair.ratio,
        "cached_tokens": pair.warm.num_cached,
        "warm_s": pair.warm.first_token_s,
        "cold_s": pair.cold.first_token_s,
        "warm_thread_s": pair.warm.first_token_thread_s,
        "cold_thread_s": pair.cold.first_token_thread_s,
    }
