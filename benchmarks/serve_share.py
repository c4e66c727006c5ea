"""How much of the offline throughput is left over the network: 32 streams of SSE against `LLM.generate`.

`python -m benchmarks serve_share [--rounds N] [-- OPTIONS OF quire serve]`. The s135 shape with random weights; the
same 32 requests (64-256 tokens in, 64-128 out, greedy) on both sides, in turns, with other prompts in each. The clients
run on the same cores as the server. Exits 1 when the median share is below the limit.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from app.commands.workload import draw_load
from benchmarks.cpu.cells import NUM_MIXED, draw_prompts, vocab_size
from benchmarks.cpu.sides import Opener
from benchmarks.cpu.weights import write_checkpoint
from benchmarks.server_process import serving

MIN_SHARE = 0.9
SHAPE = "s135"
AS_OFFLINE = ("--max-model-len", "512", "--kv-cache-memory", "1GiB")
READ_BYTES = 65536
TAIL_BYTES = 2048  # of a stream: its last events
DONE = b"data: [DONE]"


async def stream(port: int, prompt: Sequence[int], num_new: int) -> None:
    """Ask for a streamed completion and read it to its end."""
    body = {"prompt": prompt, "max_tokens": num_new, "temperature": 0, "ignore_eos": True, "stream": True}
    payload = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    try:
        lengths = f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        writer.write((head + lengths).encode() + payload)
        tail = b""
        while DONE not in tail:
            chunk = await reader.read(READ_BYTES)
            assert chunk, f"the stream was cut: {tail!r}"
            tail = (tail + chunk)[-TAIL_BYTES:]
        assert f'"completion_tokens":{num_new}'.encode() in tail, f"an answer ended early: {tail[-500:]!r}"
    finally:
        writer.close()
        await writer.wait_closed()


async def serve_all(port: int, prompts: Sequence[Sequence[int]], num_new_tokens: Sequence[int]) -> float:
    """Return the seconds that all streams take, side by side."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for prompt, new in zip(prompts, num_new_tokens, strict=True):
            group.create_task(stream(port, prompt, new))
    return time.perf_counter() - start


def measure(folder: Path, rounds: int, options: Sequence[str]) -> list[float]:
    """Return the share of each round."""
    model = write_checkpoint(SHAPE, folder / SHAPE)
    load = draw_load(NUM_MIXED, vocab_size(SHAPE))
    lengths, new = [len(prompt) for prompt in load.prompts], load.num_new_tokens
    offline, shares = Opener(folder).quire(model, "bf16"), []
    try:
        with serving(str(model), *AS_OFFLINE, *options) as server:
            for turn in range(-1, rounds):  # the first one warms up
                prompts = draw_prompts(lengths, vocab_size(SHAPE), str(turn))
                served_s = asyncio.run(serve_all(server.port, prompts, new))
                offline_s = offline.generate(prompts, new)
                if turn >= 0:
                    shares.append(offline_s / served_s)
                    rates = f"served {sum(new) / served_s:.0f} tok/s, offline {sum(new) / offline_s:.0f}"
                    print(f"round {turn + 1}: {rates}, share {shares[-1]:.1%}", flush=True)
    finally:
        offline.close()
    return shares


def main() -> int:
    """Measure, print one line per round, and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", metavar="OPTIONS", help="of quire serve, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        shares = measure(Path(folder), args.rounds, args.options)
    median = statistics.median(shares)
    print(f"median share {median:.1%} ({min(shares):.1%}-{max(shares):.1%}), at least {MIN_SHARE:.0%} required")
    return int(median < MIN_SHARE)


if __name__ == "__main__":
    sys.exit(main())
