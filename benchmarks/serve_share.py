"""How much of the offline throughput is left over the network: 32 streams of SSE against `LLM.generate`.

`python -m benchmarks serve_share [--rounds N] [-- OPTIONS OF quire serve]`. The s135 shape with random weights; the
same 32 requests (64-256 tokens in, 64-128 out, greedy) on both sides, in turns, with other prompts in each. The clients
run on the same cores as the server. Exits 1 when the median share is below the limit.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from app.commands.measuring.workload import random_workload
from app.commands.options import Parser
from benchmarks.cpu.cells import NUM_MIXED, draw_prompts, vocab_size
from benchmarks.cpu.sides import Opener
from benchmarks.cpu.weights import write_checkpoint
from benchmarks.limits import conclude, judge
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import ServerProcess, serving

SHAPE = "s135"
AS_OFFLINE = ("--max-model-len", "512", "--kv-cache-memory", "1GiB")


async def stream(server: ServerProcess, prompt: Sequence[int], num_new: int) -> None:
    """Ask for a streamed completion and read it to its end."""
    body = {"prompt": prompt, "max_tokens": num_new, "temperature": 0, "ignore_eos": True, "stream": True}
    payload, reader = orjson.dumps(body | {"stream_options": {"include_usage": True}}), PieceReader()
    await server.client().exchange(server.target.post("/v1/completions", payload), reader)
    assert reader.num_tokens() == num_new, "an answer ended early"


async def serve_all(server: ServerProcess, prompts: Sequence[Sequence[int]], num_new_tokens: Sequence[int]) -> float:
    """Return the seconds that all streams take, side by side."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for prompt, new in zip(prompts, num_new_tokens, strict=True):
            group.create_task(stream(server, prompt, new))
    return time.perf_counter() - start


def measure(folder: Path, rounds: int, options: Sequence[str]) -> list[float]:
    """Return the share of each round."""
    model = write_checkpoint(SHAPE, folder / SHAPE)
    load = random_workload(NUM_MIXED, vocab_size(SHAPE))
    lengths, new = [len(prompt) for prompt in load.prompts], load.num_new_tokens
    offline, shares = Opener(folder).quire(model, "bf16"), []
    try:
        with serving(str(model), *AS_OFFLINE, *options) as server:
            for turn in range(-1, rounds):  # the first one warms up
                prompts = draw_prompts(lengths, vocab_size(SHAPE), str(turn))
                served_s = asyncio.run(serve_all(server, prompts, new))
                offline_s = offline.generate(prompts, new)
                if turn >= 0:
                    shares.append(offline_s / served_s)
                    rates = f"served {sum(new) / served_s:.0f} tok/s, offline {sum(new) / offline_s:.0f}"
                    print(f"round {turn + 1}: {rates}, share {shares[-1]:.1%}", flush=True)
    finally:
        offline.close()
    return shares


def add_options(parser: Parser) -> None:
    """Add how often, and the server's options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds, default 5")
    parser.add_argument("options", nargs="*", metavar="OPTIONS", help="of quire serve, after --")


def run(args: argparse.Namespace) -> int:
    """Measure, print one line per round, and judge the median."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        shares = measure(Path(folder), args.rounds, args.options)
    verdict = judge("serve_share", "share of the offline throughput", statistics.median(shares))
    print(f"{verdict} ({min(shares):.1%}-{max(shares):.1%})")
    return conclude([verdict])
