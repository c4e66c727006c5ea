"""What the journal costs a real server: its share of the processor, and the first token of an answer."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import NamedTuple

import orjson

from app.loadgen.answer import Answer
from app.loadgen.load import Request
from benchmarks.cpu.weights import write_checkpoint
from benchmarks.journal.timed_server import BEGINS
from benchmarks.server_process import ServerProcess, listening, serving

COMPLETIONS = "/v1/completions"
SHAPE = "s135"
NUM_STREAMS, NUM_TOKENS = 32, 160
AS_S135 = ("--max-model-len", "512", "--kv-cache-memory", "1GiB")


class Share(NamedTuple):
    """The processor seconds of the journal's thread, and of the whole process meanwhile."""

    journal_s: float
    process_s: float
    num_tokens: int


def share_of_process(folder: Path) -> Share:
    """Serve durable streams of the s135 shape with random weights. Blocks."""
    model = write_checkpoint(SHAPE, folder / SHAPE)
    options = (*AS_S135, "--journal", str(folder / "share"))
    with listening(str(model), *options, program="benchmarks.journal.timed_server") as server:
        asyncio.run(_serve(server))
        before = server.processor_s()
        asyncio.run(_serve(server, NUM_STREAMS))
        process_s = server.processor_s() - before
        found = re.search(rf"{BEGINS}([\d.]+) s", "\n".join(server.end()))
    if found is None:
        raise RuntimeError("the server has not told what its journal has cost")
    return Share(float(found[1]), process_s, NUM_STREAMS * NUM_TOKENS)


async def _serve(server: ServerProcess, num_streams: int = 1) -> None:
    await server.wait_until_ready()
    await asyncio.gather(*(_ask(server, number, NUM_TOKENS) for number in range(num_streams)))


def first_tokens_s(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Return the times to the first token of resumable answers, the shortest first: durable, and in memory. Blocks.

    They come in turns.
    """
    durable: list[float] = []
    in_memory: list[float] = []
    with serving("guide", "--journal", str(folder / "first")) as one, serving("guide") as other:
        for number in range(-10, count):  # the first ones warm up
            for server, found in ((one, durable), (other, in_memory)):
                seconds = asyncio.run(_ask(server, number, 4))
                if number >= 0:
                    found.append(seconds)
    return sorted(durable), sorted(in_memory)


async def _ask(server: ServerProcess, number: int, num_tokens: int) -> float:
    """Read a resumable answer; return the seconds to its first token.

    Raises:
        RuntimeError: it failed.
    """
    body = {
        "prompt": f"What is Quire? {number}",
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "seed": number + 100,
    }
    line, _, rest = server.target.post(COMPLETIONS, orjson.dumps(body)).partition(b"\r\n")
    answer = Answer(0.0, 0.0, time.perf_counter())
    await server.client().send(Request(0.0, line + b"\r\nx-quire-resume: 1\r\n" + rest), answer)
    if answer.ttft is None or answer.error:
        raise RuntimeError(f"an answer failed: {answer.error} {answer.message}")
    return answer.ttft
