"""The next turn of a conversation after a restart, with `--kv-disk` and without: time to its first token.

`python -m benchmarks kv_disk [--repeat N] [--models s135,smollm2]` writes the figures of these models into
`results/kv_disk.json`, and exits 1 when a limit is missed or a model is not there: for each model and each end of the
server the median must be five times sooner, and the tokens must be the same.

The first turn is a prompt of 4,000 tokens and its answer; the second is both and 30 new tokens. A server answers the
first, and ends by SIGTERM or, in turn, by kill -9 ten seconds after the answer. The next server, with the same folder,
answers the second turn as its first request; so does one without a folder. s135 has random weights, SmolLM2-135M those
of `make real-model`.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from app.commands.measuring.machine import describe_run
from app.commands.measuring.workload import SHAPES
from app.commands.options import Parser
from app.runtime.home_cache import home_cache
from benchmarks.cpu.weights import write_model
from benchmarks.figures import RESULTS, write_json
from benchmarks.limits import Verdict, conclude, judge
from benchmarks.options import chosen
from benchmarks.piece_reader import PieceReader
from benchmarks.server_process import ServerProcess, listening

NUM_PROMPT, NUM_NEW, NUM_ANSWER, NUM_COMPARED = 4000, 30, 40, 16
CONTEXT = 8192
OPTIONS = ("--max-model-len", "6144", "--kv-cache-memory", "1GiB", "--dtype", "bfloat16")
MODELS = ("s135", "smollm2")
FILE = RESULTS / "kv_disk.json"
ENDS = (signal.SIGTERM, signal.SIGKILL)
END_S = 30.0
KILLED_S = 10.0
"""How long after the first turn it must be on disk: a process that is killed then has lost nothing of it."""
_TOKEN = re.compile(rb'"token_ids": ?\[\d')


class Turn(NamedTuple):
    """An answer: its tokens, when the first one came, how many tokens of the prompt were not computed, and the seconds
    of processor time that the server took.
    """

    token_ids: list[int]
    first_token_s: float
    num_cached: int
    processor_s: float


class Restart(NamedTuple):
    """The second turn after an end of the server, with what the first left on disk and without."""

    end: str
    warm: Turn
    cold: Turn
    num_bytes: int  # on disk

    @property
    def ratio(self) -> float:
        """How much sooner the warm one started."""
        return self.cold.first_token_s / self.warm.first_token_s

    @property
    def faults(self) -> list[str]:
        """The faults besides time."""
        found = []
        if self.warm.num_cached < NUM_PROMPT:
            found.append(f"{self.warm.num_cached} cached tokens after {self.end}")
        if self.cold.num_cached:
            found.append(f"{self.cold.num_cached} cached tokens without a folder")
        if self.warm.token_ids != self.cold.token_ids:
            found.append(f"other tokens warm than cold after {self.end}")
        return found


class TokenReader(PieceReader):
    """Keeps the whole body.

    Attributes:
        body: what came so far.
        first_token_at: when the first token came; a long prompt is announced by heartbeats, which are pieces, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = b""
        self.first_token_at: float | None = None

    def feed(self, piece: bytes, now: float) -> None:
        super().feed(piece, now)
        if self.first_token_at is None and _TOKEN.search(self.body):
            self.first_token_at = now

    def on_body(self, body: bytes) -> None:
        """Keep the next bytes; called by the parser."""
        super().on_body(body)
        self.body += body


async def ask(server: ServerProcess, prompt: Sequence[int], num_tokens: int) -> Turn:
    """Stream a greedy completion."""
    fields = {"prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    payload = orjson.dumps(fields | {"stream_options": {"include_usage": True}, "return_token_ids": True})
    reader, processor_s, began = TokenReader(), server.processor_s(), time.perf_counter()
    await server.client().exchange(server.target.post("/v1/completions", payload), reader)
    assert reader.num_tokens() == num_tokens and reader.first_token_at is not None, "the answer ended early"
    chunks = [orjson.loads(line[6:]) for line in reader.body.split(b"\n") if line.startswith(b"data: {")]
    token_ids = [one for chunk in chunks for choice in chunk["choices"] for one in choice.get("token_ids") or ()]
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Turn(token_ids, reader.first_token_at - began, num_cached, server.processor_s() - processor_s)


async def first_turn(server: ServerProcess, prompt: Sequence[int], end: signal.Signals) -> list[int]:
    """Answer the first turn, and end the server; return the conversation."""
    await server.wait_until_ready()
    answer = await ask(server, prompt, NUM_ANSWER)
    if end is signal.SIGTERM:
        await asyncio.to_thread(server.terminate, END_S)
    else:
        await asyncio.sleep(KILLED_S)
        server.kill()
    return [*prompt, *answer.token_ids]


async def second_turn(server: ServerProcess, prompt: Sequence[int]) -> Turn:
    """Answer the second turn, as the first request of a server."""
    await server.wait_until_ready()
    return await ask(server, prompt, NUM_COMPARED)


def restart(model: str, vocab_size: int, folder: Path, number: int) -> Restart:
    """Have a conversation over a restart, and the same without one."""
    rng = random.Random(number)
    disk, end = ("--kv-disk", str(folder)), ENDS[number % len(ENDS)]
    prompt = [rng.randrange(vocab_size) for _ in range(NUM_PROMPT)]
    with listening(model, *OPTIONS, *disk) as server:
        conversation = asyncio.run(first_turn(server, prompt, end))
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    turn = [*conversation, *(rng.randrange(vocab_size) for _ in range(NUM_NEW))]
    with listening(model, *OPTIONS, *disk) as server:
        warm = asyncio.run(second_turn(server, turn))
    with listening(model, *OPTIONS) as server:
        cold = asyncio.run(second_turn(server, turn))
    return Restart(end.name, warm, cold, num_bytes)


def checkpoint(name: str, folder: Path) -> Path | None:
    """Return the folder of a model; None if it is not on this machine."""
    if name == "s135":
        return write_model(SHAPES[name] | {"max_position_embeddings": CONTEXT}, folder / name)
    path = (home_cache() or Path()) / "smollm2" / "bf16"
    return path if path.exists() else None


def measure(name: str, repeat: int) -> list[Restart]:
    """Measure a model, and print a line for each restart; nothing where the model is not on this machine."""
    restarts = []
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as scratch:
        path = checkpoint(name, Path(scratch))
        if path is None:
            return []
        vocab_size = int(json.loads((path / "config.json").read_text())["vocab_size"])
        for number in range(repeat * len(ENDS)):
            restarts.append(one := restart(str(path), vocab_size, Path(scratch) / f"kv-{number}", number))
            first = f"warm {1e3 * one.warm.first_token_s:5.0f} ms, cold {1e3 * one.cold.first_token_s:5.0f} ms"
            processor = f"processor {one.warm.processor_s:.2f} and {one.cold.processor_s:.2f} s"
            size = f"{one.num_bytes / 2**20:.0f} MiB"
            print(f"{name}, {one.end}: {first}, {one.ratio:4.1f} times sooner; {processor}; {size}", flush=True)
    return restarts


def add_options(parser: Parser) -> None:
    """Add how often, and of which models."""
    parser.add_argument("--repeat", type=int, default=3, help="restarts of each model by each end, default 3")
    parser.add_argument("--models", help="s135, smollm2 or both (default)")


def run(args: argparse.Namespace) -> int:
    """Measure, write the figures, and judge."""
    verdicts: list[Verdict] = []
    faults: list[str] = []
    for name in chosen(args.models, list(MODELS), "models"):
        about, restarts = describe_run(("torch",)), measure(name, args.repeat)
        if not restarts:
            faults.append(f"{name} is not there: `make real-model` fetches it")
            continue
        verdicts += judged(name, restarts)
        faults += [f"{name}: {fault}" for one in restarts for fault in one.faults]
        save(name, {**about, "restarts": [describe(one) for one in restarts]})
    print(*verdicts, sep="\n")
    return conclude(verdicts, faults)


def judged(name: str, restarts: Sequence[Restart]) -> list[Verdict]:
    """Return the verdicts on a model, one for each end of its servers."""
    ratios = {end.name: [one.ratio for one in restarts if one.end == end.name] for end in ENDS}
    return [
        judge("kv_disk", "next turn sooner after a restart", statistics.median(found), f"{name}, {end}")
        for end, found in ratios.items()
    ]


def save(name: str, found: Mapping[str, object]) -> None:
    """Write the figures of a model; those of others stay."""
    models = json.loads(FILE.read_text(encoding="utf-8"))["models"] if FILE.exists() else {}
    write_json(FILE, {"benchmark": "kv_disk", "models": {**models, name: found}})


def describe(one: Restart) -> dict[str, object]:
    """Return the figures of a restart as they are written."""
    return {
        "end": one.end,
        "ratio": one.ratio,
        "warm_s": one.warm.first_token_s,
        "cold_s": one.cold.first_token_s,
        "warm_processor_s": one.warm.processor_s,
        "cold_processor_s": one.cold.processor_s,
        "cached_tokens": one.warm.num_cached,
        "disk_bytes": one.num_bytes,
    }
