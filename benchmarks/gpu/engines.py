"""Quire's engine under measurement: made with random weights, its graphs captured, warm."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from app.commands.measuring.workload import Workload
from app.contract.sampling_params import SamplingParams
from app.llm import LLM

MOST_KEPT = 1 << 30  # bytes that an engine may leave behind
WARM_PROMPT, WARM_NEW, WARM_REQUESTS = 64, 16, 4


@contextmanager
def engine(model: Path, **settings: Any) -> Iterator[LLM]:
    """Yield a warm engine over a model's config.json; its memory is given back behind it.

    Raises:
        RuntimeError: the one before it has kept memory, so that this one would get a smaller KV cache.
    """
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > MOST_KEPT:
        raise RuntimeError(f"{torch.cuda.memory_reserved() >> 20} MiB were not given back by what ran before")
    llm = LLM(str(model), load_format="dummy", **settings)
    try:
        warm_up(llm)
        yield llm
    finally:
        llm.close()
        del llm
        give_memory_back()


def warm_up(llm: LLM) -> None:
    """Generate a little, so that all is compiled, then capture every graph.

    Raises:
        RuntimeError: a graph could not be captured; figures would be those of steps without one.
    """
    prompts = tuple(tuple(range(1, 1 + WARM_PROMPT)) for _ in range(WARM_REQUESTS))
    run_load(llm, Workload(prompts, (WARM_NEW,) * WARM_REQUESTS), 0.0)
    while llm.engine.work_idly():
        pass
    steps = getattr(llm.engine.runner, "steps", None)  # a runner on a CPU has no graphs
    if steps is not None and steps.counts.num_captured != steps.num_shapes:
        raise RuntimeError(
            f"{steps.counts.num_captured} of {steps.num_shapes} CUDA graphs were captured; the log says why not all"
        )
    run_load(llm, Workload(prompts, (WARM_NEW,) * WARM_REQUESTS), 0.0)


def run_load(llm: LLM, load: Workload, temperature: float) -> float:
    """Return the seconds that all answers of a load take, submitted at once."""
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in load.prompts]
    params = [
        SamplingParams(temperature=temperature, max_tokens=new, ignore_eos=True, seed=index)
        for index, new in enumerate(load.num_new_tokens)
    ]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    found = [len(output.outputs[0].token_ids) for output in outputs]
    if found != list(load.num_new_tokens):
        raise RuntimeError(f"answers ended early: {sum(found)} tokens of {sum(load.num_new_tokens)}")
    return seconds


def settings_of(llm: LLM) -> dict[str, Any]:
    """Return the settings that the engine really runs with."""
    config, limits = llm.config, llm.engine.scheduler.limits
    return {
        "device": str(config.model.device),
        "dtype": config.model.dtype,
        "enforce_eager": config.model.enforce_eager,
        "deterministic": config.model.deterministic,
        "kv_cache_dtype": config.cache.kv_cache_dtype,
        "block_size": config.cache.block_size,
        "prefix_caching": config.cache.enable_prefix_caching,
        "num_kv_blocks": limits.num_blocks,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "run_ahead": limits.run_ahead,
        "graphs_missing": llm.engine.runner.has_idle_work,
        "graphs": llm.engine.runner.counts.num_captured,
    }


def counts_of(llm: LLM) -> Mapping[str, int]:
    """Return how the engine came through: steps, preemptions, faults that it survived."""
    stats = llm.engine.stats()
    return {"steps": stats.step, "preemptions": stats.preemption.num_preemptions, "faults": stats.recovery.num_faults}


def give_memory_back() -> None:
    """Free unreferenced memory, on the GPU too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
