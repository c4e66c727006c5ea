"""S5: `quire serve` in a process of its own, with clients in another one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from app.commands.measuring.workload import Workload
from benchmarks.gpu.about import gpu_state
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.loads import TEMPERATURE, load_256, turned, uniform_load
from benchmarks.gpu.models import MAX_MODEL_LEN, write_model
from benchmarks.gpu.sections import FLAGSHIP, REQUESTS, STREAMS
from benchmarks.gpu.tasks import Task
from benchmarks.server_process import ServerProcess, listening

START_S, CLIENT_S = 40.0, 60.0
CAPTURING_S = 5.0  # for the graphs that an idle server captures
WARM_REQUESTS, WARM_NEW = 64, 24
RATES = (0.8, 0.5, 0.95)  # of the offline throughput
POISSON_PROMPT, POISSON_NEW, POISSON_S = 512, 256, 8.0
POISSON_NEEDS_S = 15.0  # until the last answer
MAX_QUEUE = 1024
GRAPHS, FAILURES = "quire_graph_captures_total", "quire_graph_failures_total"


def measure(task: Task) -> Iterator[Figure]:
    """Serve a model; see Measures."""
    model = write_model(task.row, task.folder)
    offline = task.known.value("S4", f"{task.row}, {REQUESTS}")
    num_poisson = len(RATES) if task.row == FLAGSHIP else 0
    options = ["--device", "cuda", "--max-model-len", str(MAX_MODEL_LEN), "--max-queue", str(MAX_QUEUE)]
    yield from serve_and_ask(
        task.row,
        model,
        load_256(),
        options,
        task,
        offline=offline,
        num_poisson=num_poisson,
    )


def serve_and_ask(
    name: str,
    model: Path,
    load: Workload,
    options: Sequence[str],
    task: Task,
    *,
    offline: float | None,
    num_poisson: int,
    capturing_s: float = CAPTURING_S,
) -> Iterator[Figure]:
    """Yield the time to the first token, the rate of all streams at once, then requests that arrive at random.

    Raises:
        RuntimeError: the server does not start, or a graph could not be captured: its steps would be called one by one.
    """
    began = time.perf_counter()
    # It stays in the process group of the section, which is ended as one.
    with listening(str(model), "--load-format", "dummy", *options, log=task.folder / "server.log") as server:
        listening_s = time.perf_counter() - began
        asyncio.run(_first_token(server))
        first = time.perf_counter() - began
        about: dict[str, Any] = {"listening_s": listening_s, "options": list(options), "gpu": gpu_state()}
        about["note"] = f"listens after {listening_s:.1f} s"
        yield Figure(f"{name}, start", "s", (first,), about=about)
        warm = Workload(turned(load, 3).prompts[:WARM_REQUESTS], (WARM_NEW,) * min(WARM_REQUESTS, len(load.prompts)))
        ask(server, warm, task.folder)
        time.sleep(capturing_s)
        graphs = asyncio.run(_count(server, GRAPHS))
        answers = ask(server, turned(load, 1), task.folder)
        _check_graphs(server)
        yield _streams(f"{name}, {STREAMS}", {"graphs": graphs, **answers}, load, offline)
        for share in RATES[:num_poisson] if offline else ():
            if time.monotonic() + POISSON_NEEDS_S > task.deadline:
                break
            assert offline is not None
            rate = share * offline / POISSON_NEW
            arriving = uniform_load(max(1, round(rate * POISSON_S)), POISSON_PROMPT, POISSON_NEW)
            answers = ask(server, turned(arriving, round(100 * share)), task.folder, rate)
            yield _latency(f"{name}, Poisson at {share:.0%}", answers, rate)


async def _first_token(server: ServerProcess) -> None:
    await server.wait_until_ready(START_S)
    question = {"prompt": list(range(100, 132)), "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True}
    await server.wait_for_token("/v1/completions", question)


async def _count(server: ServerProcess, name: str) -> float:
    """Return a count of the server's metrics.

    Raises:
        RuntimeError: there is none of that name.
    """
    metrics = (await server.client().get("/metrics")).content.decode()
    found = [line.split()[-1] for line in metrics.splitlines() if line.startswith(name)]
    if not found:
        raise RuntimeError(f"the server's metrics have no {name}")
    return float(found[0])


def _check_graphs(server: ServerProcess) -> None:
    failures = asyncio.run(_count(server, FAILURES))
    if failures:
        raise RuntimeError(f"{failures:.0f} captures of CUDA graphs failed in the server; its log says why")


def ask(server: ServerProcess, load: Workload, folder: Path, rate: float | None = None) -> dict[str, Any]:
    """Return the summary of the clients' process for a load: all at once, or at random times with a mean rate."""
    file = folder / "load.json"
    requests = {
        "prompts": load.prompts,
        "num_new_tokens": load.num_new_tokens,
        "temperature": TEMPERATURE,
        "rate": rate,
    }
    file.write_text(json.dumps(requests))
    command = [sys.executable, "-m", "benchmarks.gpu.clients", server.target.url, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError(f"the clients failed: {done.stderr.strip()[-1500:]}")
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def _streams(name: str, answers: dict[str, Any], load: Workload, offline: float | None) -> Figure:
    num_new = sum(load.num_new_tokens)
    rate = num_new / answers["seconds"]
    share = f"; {rate / offline:.1%} of offline" if offline else "; the offline rate was not measured"
    about = {"offline": offline, **answers, "gpu": gpu_state(), "note": _words(answers) + share}
    return Figure(name, "tok/s", (rate,), about=about)


def _latency(name: str, answers: dict[str, Any], rate: float) -> Figure:
    about = {"requests_per_second": rate, **answers, "note": f"{rate:.1f} requests/s; {_words(answers)}"}
    return Figure(name, "tok/s", (answers["tokens"] / answers["seconds"],), about=about)


def _words(answers: dict[str, Any]) -> str:
    ttft, itl = answers["ttft_ms"], answers["itl_ms"]
    return f"TTFT p50 {ttft['p50']:.0f} p99 {ttft['p99']:.0f} ms, ITL p50 {itl['p50']:.1f} p99 {itl['p99']:.1f} ms"
