"""S3: how long one decode step takes, alone as a graph and with the engine around it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from app.contract.admission import admit
from app.contract.events import Finished, RequestFailed, TokenDelta
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.llm import LLM
from app.runtime.clock import monotonic
from benchmarks.gpu.about import gpu_state
from benchmarks.gpu.bounds import Shape, decode_work
from benchmarks.gpu.claims import step_name
from benchmarks.gpu.engines import engine, settings_of
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.loads import VOCAB
from benchmarks.gpu.models import SHAPES, write_model
from benchmarks.gpu.offline import settings_for
from benchmarks.gpu.replays import ReplayedStep
from benchmarks.gpu.tasks import CannotMeasure, Task
from benchmarks.gpu.timing import TURNS

CONTEXT = 1024
BATCHES = (256, 128, 32, 8, 1)
STEPS = 16  # timed with the engine, in each of TURNS
WARM_STEPS = 6
REPLAYS = 16
BLOCKS = 80  # of a sequence: a context of 1280 tokens fits
AHEAD = 160  # tokens that the first sequences may get while the prompts of the last are computed
# What all batches decode one after another, so that contexts are 1k in the middle of it.
_DECODED = len(BATCHES) * (WARM_STEPS + TURNS * STEPS)
NUM_PROMPT = CONTEXT - _DECODED // 2 - 32


def measure(task: Task) -> Iterator[Figure]:
    """Measure a model at all batch sizes; see Measures."""
    name, _, variant = task.row.partition(", ")
    model = write_model(name, task.folder)
    settings = {"device": "cuda", "num_kv_blocks": max(BATCHES) * BLOCKS + 64, **settings_for(variant)}
    yield from measure_model(task.row, model, SHAPES[name], BATCHES, settings)


def measure_model(
    name: str,
    model: Path,
    shape: Shape,
    batches: Sequence[int],
    settings: Mapping[str, Any],
    num_prompt: int = NUM_PROMPT,
) -> Iterator[Figure]:
    """Yield the times of graphs alone, then those of the engine, at each batch size.

    The prompts are computed once, for the largest batch; the smaller ones are what is left when sequences are dropped.
    """
    with engine(model, max_model_len=_longest(num_prompt), **settings) as llm:
        failure = ""
        if torch.cuda.is_available():
            try:
                yield from _graph_figures(name, llm, shape, batches)
            except Exception as error:  # the engine's own times do not need what this reaches into
                failure = repr(error)  # not itself, which would hold the engine's memory
        yield from _engine_figures(name, llm, shape, batches, num_prompt)
    if failure:
        raise CannotMeasure(f"the graphs alone: {failure}")


def _longest(num_prompt: int) -> int:
    return num_prompt + _DECODED + AHEAD + 8


# --- The engine around the step ------------------------------------------------------------------------------------


def _engine_figures(name: str, llm: LLM, shape: Shape, batches: Sequence[int], num_prompt: int) -> Iterator[Figure]:
    loop = Loop(llm, max(batches), num_prompt)
    settings, gpu = settings_of(llm), dict[str, str]()
    for batch in sorted(batches, reverse=True):
        loop.shrink(batch)
        loop.steps(WARM_STEPS)
        contexts = loop.contexts()
        turns = [loop.steps(STEPS) for _ in range(TURNS)]
        contexts = [round((first + last) / 2) for first, last in zip(contexts, loop.contexts(), strict=True)]
        mean = round(statistics.mean(contexts))
        times = tuple(1e3 * seconds for seconds, _ in turns)
        on_device = [1e3 * statistics.median(devices) for _, devices in turns if devices]
        gpu = gpu or gpu_state()
        about: dict[str, Any] = {"batch": batch, "context": mean, "settings": settings, "gpu": gpu}
        if on_device and all(on_device):
            busy = statistics.median(on_device) / statistics.median(times)
            about |= {"device_ms": on_device, "busy": busy, "note": f"GPU busy {busy:.0%}"}
        yield Figure(step_name(name, batch, "engine"), "ms", times, decode_work(shape, contexts), about=about)
    loop.close()


class Loop:
    """An engine that decodes `batch` sequences; it is stepped one by one."""

    def __init__(self, llm: LLM, batch: int, num_prompt: int) -> None:
        self._engine: Engine = llm.engine
        self._durations = _listen(self._engine)
        rng, self._ids = random.Random(1), [f"decode-{index}" for index in range(batch)]
        vocab = min(VOCAB, self._engine.model_info.vocab_size)
        params = SamplingParams(temperature=0.6, max_tokens=_DECODED + AHEAD, ignore_eos=True, seed=0)
        for request_id in self._ids:
            prompt = tuple(rng.choices(range(vocab), k=num_prompt))
            request = EngineRequest(request_id, prompt, admit(prompt, params, self._engine.model_info), monotonic())
            if self._engine.add(request):
                raise RuntimeError("the engine rejected a request")
        self._lengths = dict.fromkeys(self._ids, num_prompt)
        while True:
            num_prefill, num_decode = self._step()
            if num_decode and not num_prefill:
                break

    def shrink(self, batch: int) -> None:
        """Drop sequences until `batch` are left: the newest, whose contexts are the shortest."""
        num_dropped = len(self._ids) - batch
        for request_id in self._ids[:num_dropped]:
            self._engine.abort(request_id, monotonic())
        del self._ids[:num_dropped]

    def contexts(self) -> list[int]:
        """Return how long the sequences are."""
        return [self._lengths[request_id] for request_id in self._ids]

    def steps(self, count: int) -> tuple[float, list[float]]:
        """Return the mean seconds of a step, and those of each on the device where that is measured.

        The mean: where steps run ahead, one may wait for several and the next for none.
        """
        del self._durations[:]
        began = time.perf_counter()
        num_decode = 0
        for _ in range(count):
            _, num_decode = self._step()
        seconds = (time.perf_counter() - began) / count
        if num_decode != len(self._ids):
            raise RuntimeError(f"{num_decode} decoded tokens in a step of {len(self._ids)} sequences")
        return seconds, list(self._durations)

    def close(self) -> None:
        """Drop all sequences."""
        self.shrink(0)
        while self._engine.has_ready_work:
            self._step()

    def _step(self) -> tuple[int, int]:
        """Compute a step; return its tokens, of prompts and of answers."""
        report = self._engine.turn((), monotonic())
        for event in report.events:
            if isinstance(event, TokenDelta):
                self._lengths[event.request_id] += len(event.token_ids)
            elif isinstance(event, (RequestFailed, Finished)) and event.request_id in self._ids:
                raise RuntimeError(f"a sequence has ended: {event}")
        return report.num_prefill_tokens, report.num_decode_tokens


def _listen(engine: Engine) -> list[float]:
    """Let the device's seconds of each step be noted in the list that is returned."""
    durations: list[float] = []
    update = engine.scheduler.update

    def noting(result: Any, now: float) -> Any:
        durations.append(result.duration_s)
        return update(result, now)

    engine.scheduler.update = noting  # type: ignore[method-assign]
    return durations


# --- The step alone ------------------------------------------------------------------------------------------------


def _graph_figures(name: str, llm: LLM, shape: Shape, batches: Sequence[int]) -> Iterator[Figure]:
    replayed, gpu = ReplayedStep(llm.engine, llm.config.cache.block_size), dict[str, str]()
    try:
        for batch in sorted(batches):
            replayed.prepare(batch, CONTEXT - REPLAYS // 2, BLOCKS)
            values = tuple(1e3 * replayed.seconds(REPLAYS) for _ in range(TURNS))
            nodes, gpu = replayed.num_nodes(), gpu or gpu_state()
            about: dict[str, Any] = {"batch": batch, "context": CONTEXT, "nodes": nodes, "gpu": gpu}
            if isinstance(nodes, int):
                about |= {"nodes_per_layer": nodes / shape.num_layers, "note": f"{nodes} nodes"}
            work = decode_work(shape, [CONTEXT] * batch)
            yield Figure(step_name(name, batch, "graph"), "ms", values, work, about=about)
    finally:
        replayed.close()
