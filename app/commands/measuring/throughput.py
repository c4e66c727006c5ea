"""Offline throughput: `LLM.generate` with all requests at once, compared with transformers `generate` one by one.

Both have the same shape, dtype, prompts and output lengths (EOS ignored, greedy), run alternately in the same process,
and use the number of threads that is fastest for them. Random weights take the same time as trained ones.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from app.commands.measuring.workload import Workload
from app.contract.sampling_params import SamplingParams
from app.llm import LLM

WARM_UP_TOKENS = 8


def measure(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run the sides in turn, `repeats` times each; return the output tokens per second of each repeat by side."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            gc.collect()
            rates[name].append(run())
    return rates


def quire_side(llm: LLM, load: Workload) -> Callable[[], float]:
    """Return a function that runs `LLM.generate` on all of `load` at once; after a warm-up."""

    def run(load: Workload = load, *, progress: bool = True) -> float:
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in load.prompts]
        params = [SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True) for new in load.num_new_tokens]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=progress)
        seconds = time.perf_counter() - start
        num_tokens = [len(output.outputs[0].token_ids) for output in outputs]
        assert num_tokens == list(load.num_new_tokens), "an output ended early"
        return sum(num_tokens) / seconds

    warm_up = load.first(4)
    run(Workload(warm_up.prompts, (WARM_UP_TOKENS,) * len(warm_up.prompts)), progress=False)
    return run


def transformers_side(folder: Path, load: Workload, *, has_weights: bool, dtype: str) -> Callable[[], float]:
    """Return a function that runs transformers `generate` on `load`, one request after the other; after a warm-up.

    As transformers recommends: SDPA attention, KV cache, inference mode, the same dtype.
    """
    import transformers

    kind, auto = getattr(torch, dtype), cast("Any", transformers.AutoModelForCausalLM)
    if has_weights:
        model = auto.from_pretrained(folder, dtype=kind)
    else:
        model = auto.from_config(transformers.AutoConfig.from_pretrained(folder), dtype=kind)
    model = model.eval()

    def generate(prompt: Sequence[int], new: int) -> None:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
            use_cache=True,
        )
        assert output.shape[1] == len(prompt) + new, "an output ended early"

    def warm_up(threads: int) -> float:
        with computing(threads):
            generate(load.prompts[0], WARM_UP_TOKENS)
            start = time.perf_counter()
            generate(load.prompts[0], WARM_UP_TOKENS)
            return time.perf_counter() - start

    def run() -> float:
        start = time.perf_counter()
        with computing(threads):
            for prompt, new in tqdm(list(zip(load.prompts, load.num_new_tokens, strict=True)), desc="transformers"):
                generate(prompt, new)
        return sum(load.num_new_tokens) / (time.perf_counter() - start)

    threads = min((torch.get_num_threads(), 1), key=warm_up)
    return run


@contextlib.contextmanager
def computing(threads: int) -> Iterator[None]:
    """Run the block with that many threads and without gradients; then restore the engine's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)
