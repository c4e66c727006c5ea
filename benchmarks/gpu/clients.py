"""The clients of S5, a process of their own: `python -m benchmarks.gpu.clients URL LOAD`; JSON on standard output.

They do not look into events, so that the clients do not cost more than the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from app.loadgen.figures import percentile
from app.loadgen.load_client import Client
from app.loadgen.target import Target, find_target
from benchmarks.piece_reader import PieceReader


class Answer(NamedTuple):
    """When a stream was requested, and when its parts arrived."""

    requested: float
    times: list[float]


async def stream(target: Target, prompt: Sequence[int], num_new: int, temperature: float) -> Answer:
    """Ask for a streamed completion and read it to its end.

    Raises:
        RuntimeError: it is rejected, truncated, or shorter than requested.
    """
    body = {"prompt": prompt, "max_tokens": num_new, "temperature": temperature, "ignore_eos": True, "stream": True}
    payload, reader = orjson.dumps(body | {"stream_options": {"include_usage": True}}), PieceReader()
    requested = time.perf_counter()
    await Client(target, 0.0).exchange(target.post("/v1/completions", payload), reader)
    if reader.num_tokens() != num_new:
        raise RuntimeError(f"an answer of {num_new} tokens ended early: {reader.tail[-500:]!r}")
    return Answer(requested, reader.times)


async def ask_all(target: Target, load: dict[str, Any]) -> tuple[list[Answer], float]:
    """Ask for all streams, at once or at random times; return them and the seconds until the last has ended."""
    rng, rate, began = random.Random(0), load["rate"], time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, new in zip(load["prompts"], load["num_new_tokens"], strict=True):
            tasks.append(group.create_task(stream(target, prompt, new, load["temperature"])))
            if rate:
                await asyncio.sleep(rng.expovariate(rate))
    return [task.result() for task in tasks], time.perf_counter() - began


def summary(answers: Sequence[Answer], seconds: float, num_new_tokens: Sequence[int]) -> dict[str, Any]:
    """Return the figures: times to the first part, and between parts (the median and worst of all)."""
    firsts = [answer.times[0] - answer.requested for answer in answers]
    between = [later - earlier for answer in answers for earlier, later in pairwise(answer.times)]
    return {
        "seconds": seconds,
        "requests": len(answers),
        "tokens": sum(num_new_tokens),
        "parts": sum(len(answer.times) for answer in answers),
        "ttft_ms": percentiles(firsts),
        "itl_ms": percentiles(between),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds; 0 of nothing."""
    return {name: 1e3 * percentile(sorted(seconds), share) for name, share in (("p50", 0.5), ("p99", 0.99))}


def main() -> int:
    """Send the requests of a file and print the summary."""
    target, load = find_target(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    cpu_s = time.process_time()
    answers, seconds = asyncio.run(ask_all(target, load))
    cpu_s = time.process_time() - cpu_s
    print(json.dumps(summary(answers, seconds, load["num_new_tokens"]) | {"cpu_s": cpu_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
