"""S4: how many tokens per second all requests together get, and what others do with the same ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.commands.measuring.workload import Workload
from benchmarks.gpu.about import gpu_state
from benchmarks.gpu.bounds import BF16, FP8, Work, load_work
from benchmarks.gpu.engines import counts_of, engine, run_load, settings_of
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.loads import NUM_REQUESTS, TEMPERATURE, load_256, turned, uniform_load
from benchmarks.gpu.models import MAX_MODEL_LEN, SHAPES, write_model
from benchmarks.gpu.sections import CONTINUOUS, ONE_BY_ONE, PLAIN, REQUESTS, SMALL, UNIFORM
from benchmarks.gpu.tasks import Task

LEAVES_THREADS = (f"{SMALL}, {CONTINUOUS}",)
MAX_TURNS = 2
SPARE = 1.3  # a second turn may take this much longer than the first
ROW_S = 8.0  # a turn longer than this is not repeated


def measure(task: Task) -> Iterator[Figure]:
    """Measure Quire or transformers; see Measures."""
    name, _, what = task.row.partition(", ")
    model = write_model(name, task.folder)
    if what in (CONTINUOUS, ONE_BY_ONE):
        from benchmarks.gpu import peers

        measure_peer = peers.continuous if what == CONTINUOUS else peers.one_by_one
        yield measure_peer(task.row, model, load_256())
        return
    variant = what.removeprefix(UNIFORM).removeprefix(REQUESTS).removeprefix(", ")
    is_uniform = what.startswith(UNIFORM)
    load = uniform_load(NUM_REQUESTS, 1024, 1024) if is_uniform else load_256()
    work = load_work(SHAPES[name], list(map(len, load.prompts)), load.num_new_tokens, FP8 if "fp8" in variant else BF16)
    settings = {"device": "cuda", "max_model_len": MAX_MODEL_LEN, **settings_for(variant)}
    yield from measure_load(task.row, model, load, settings, work, task.deadline, in_seconds=is_uniform)


def settings_for(variant: str) -> dict[str, object]:
    """Return the settings that the words behind a row's name stand for."""
    if not variant:
        return {}
    known: dict[str, dict[str, object]] = {
        "deterministic": {"deterministic": True},
        "eager": {"enforce_eager": True},
        PLAIN: {"dependent_launches": False},
        "fp8 KV": {"kv_cache_dtype": "fp8"},
    }
    if variant in known:
        return known[variant]
    return {"run_ahead": int(variant.removeprefix("run-ahead "))}


def measure_load(
    name: str,
    model: Path,
    load: Workload,
    settings: dict[str, object],
    work: tuple[Work, ...],
    deadline: float,
    *,
    in_seconds: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Figure]:
    """Yield the figure of a load after its first turn, and again after a second one if it is short and time is left."""
    num_new = sum(load.num_new_tokens)
    times: list[float] = []
    with engine(model, **settings) as llm:
        for turn in range(MAX_TURNS):
            if times and (times[0] > ROW_S or clock() + SPARE * times[0] > deadline):
                break
            before = dict(counts_of(llm))
            times.append(run_load(llm, turned(load, turn), TEMPERATURE))
            after = counts_of(llm)
            values = tuple(times) if in_seconds else tuple(num_new / seconds for seconds in times)
            about = {
                "requests": len(load.prompts),
                "tokens_in": load.num_prompt_tokens,
                "tokens_out": num_new,
                "temperature": TEMPERATURE,
                "seconds": list(times),
                **{f"{key} of the last turn": after[key] - before[key] for key in after},
                "settings": settings_of(llm),
                "gpu": gpu_state(),
            }
            yield Figure(name, "s" if in_seconds else "tok/s", values, work, num_new, about)
