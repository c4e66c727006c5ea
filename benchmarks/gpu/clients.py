"""The clients of S5, a process of their own: `python -m benchmarks.gpu.clients PORT LOAD`; JSON on standard output.

They speak HTTP over plain sockets and look only for the ends of events, so that the clients do not cost more than the
server.
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

READ_BYTES = 65536
EVENT, DONE = b"\n\n", b"data: [DONE]"


class Answer(NamedTuple):
    """When a stream was asked for, and when its parts came."""

    asked: float
    times: list[float]


async def stream(port: int, prompt: Sequence[int], num_new: int, temperature: float) -> Answer:
    """Ask for a streamed completion and read it to its end.

    Raises:
        RuntimeError: it is refused, cut, or shorter than asked.
    """
    body = {"prompt": prompt, "max_tokens": num_new, "temperature": temperature, "ignore_eos": True, "stream": True}
    payload = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    asked = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    lengths = f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    times: list[float] = []
    tail = b""
    try:
        writer.write((head + lengths).encode() + payload)
        while DONE not in tail:
            chunk = await reader.read(READ_BYTES)
            if not chunk:
                raise RuntimeError(f"the stream was cut: {tail!r}")
            if b"data: {" in chunk:
                times.append(time.perf_counter())
            tail = (tail + chunk)[-2048:]
    finally:
        writer.close()
    if f'"completion_tokens":{num_new}'.encode() not in tail.replace(b" ", b""):
        raise RuntimeError(f"an answer of {num_new} tokens ended early: {tail[-500:]!r}")
    return Answer(asked, times)


async def ask_all(port: int, load: dict[str, Any]) -> tuple[list[Answer], float]:
    """Ask for all streams, at once or at random times; return them and the seconds until the last has ended."""
    rng, rate, began = random.Random(0), load["rate"], time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, new in zip(load["prompts"], load["num_new_tokens"], strict=True):
            tasks.append(group.create_task(stream(port, prompt, new, load["temperature"])))
            if rate:
                await asyncio.sleep(rng.expovariate(rate))
    return [task.result() for task in tasks], time.perf_counter() - began


def summary(answers: Sequence[Answer], seconds: float, num_new_tokens: Sequence[int]) -> dict[str, Any]:
    """Return the figures: times to the first part, and between parts (the median and worst of all)."""
    firsts = [answer.times[0] - answer.asked for answer in answers]
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
    ordered = sorted(seconds) or [0.0]
    last = len(ordered) - 1
    return {name: 1e3 * ordered[round(share * last)] for name, share in (("p50", 0.5), ("p99", 0.99))}


def main() -> int:
    """Ask as the file says and print the summary."""
    port, file = int(sys.argv[1]), Path(sys.argv[2])
    load = json.loads(file.read_text())
    answers, seconds = asyncio.run(ask_all(port, load))
    print(json.dumps(summary(answers, seconds, load["num_new_tokens"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
