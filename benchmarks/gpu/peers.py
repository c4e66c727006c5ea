"""transformers on the same model and requests: continuous batching, and `generate` one request after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from app.commands.measuring.workload import Workload
from benchmarks.gpu.about import gpu_state
from benchmarks.gpu.figures import Figure

NO_EOS = -1
GENERATING_S = 18.0  # of continuous batching; what it has by then counts. Its row needs as much again to start.
STOPPING_S = 2.0  # longer than any step
WARM_PROMPT, WARM_NEW = 32, 4
NUM_ONE_BY_ONE, NEW_ONE_BY_ONE = 4, 64
MAX_BATCH_TOKENS = 2048  # as Quire has them


def make_model(folder: Path, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a model with random weights, made on the device."""
    config = transformers.AutoConfig.from_pretrained(folder)
    auto: Any = transformers.AutoModelForCausalLM
    with torch.device(device):
        model = auto.from_config(config, dtype=dtype)
    return model.to(device).eval()


def continuous(name: str, folder: Path, load: Workload, device: str = "cuda", seconds: float = GENERATING_S) -> Figure:
    """Measure continuous batching: first as it chooses its attention itself, with SDPA if that cannot be had."""
    notes: list[str] = []
    model = make_model(folder, device)
    for attention in (None, "paged|sdpa"):
        try:
            if attention is not None:
                model.set_attn_implementation(attention)
            return _continuous(name, model, load, seconds, notes)
        except Exception as error:
            failure = f"with {attention or 'its own choice of attention'}: {type(error).__name__}: {error}"
            print(f"continuous batching failed {failure}", file=sys.stderr)
            notes.append(failure[:500])
    raise RuntimeError("; ".join(notes))


def one_by_one(name: str, folder: Path, load: Workload, device: str = "cuda") -> Figure:
    """Measure `generate` on some of the requests, twice."""
    model = make_model(folder, device)
    prompts = load.prompts[:NUM_ONE_BY_ONE]
    _generate(model, prompts[:1], 8)
    times = [_generate(model, prompts, NEW_ONE_BY_ONE) for _ in range(2)]
    num_new = len(prompts) * NEW_ONE_BY_ONE
    about = {
        "version": transformers.__version__,
        "attention": model.config._attn_implementation,
        "requests": len(prompts),
        "tokens_out": num_new,
        "note": f"attention {model.config._attn_implementation}, {len(prompts)} requests, {NEW_ONE_BY_ONE} tokens each",
        "gpu": gpu_state(),
    }
    return Figure(name, "tok/s", tuple(num_new / seconds for seconds in times), about=about)


def _continuous(name: str, model: Any, load: Workload, seconds: float, notes: Sequence[str]) -> Figure:
    config: Any = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, eos_token_id=NO_EOS, pad_token_id=0
    )
    sizes: Any = transformers.ContinuousBatchingConfig(max_batch_tokens=MAX_BATCH_TOKENS)
    block: int = getattr(sizes, "block_size", None) or getattr(sizes, "page_size", None) or 256
    lengths = [len(prompt) + new for prompt, new in zip(load.prompts, load.num_new_tokens, strict=True)]
    blocks = [-(-(length + 1) // block) for length in lengths]
    sizes.num_blocks = sum(blocks) + len(blocks)  # room for all at once
    with model.continuous_batching_context_manager(
        config, continuous_batching_config=sizes, timeout=STOPPING_S
    ) as manager:
        attention = model.config._attn_implementation
        manager.add_request(list(load.prompts[-1][:WARM_PROMPT]), max_new_tokens=WARM_NEW, eos_token_id=NO_EOS)
        if not _collect(manager, 1, time.perf_counter() + GENERATING_S)[1]:
            raise RuntimeError(f"no answer of {WARM_NEW} tokens within {GENERATING_S:.0f} s")
        began = time.perf_counter()
        for prompt, new in zip(load.prompts, load.num_new_tokens, strict=True):
            manager.add_request(list(prompt), max_new_tokens=new, eos_token_id=NO_EOS)
        count, is_whole = _collect(manager, len(load.prompts), began + seconds)
        taken = time.perf_counter() - began
        chosen = getattr(manager, "continuous_batching_config", sizes)
        about = {
            "version": transformers.__version__,
            "attention": attention,
            "cuda_graphs": str(getattr(chosen, "use_cuda_graph", None)),
            "async": str(getattr(chosen, "use_async_batching", None)),
            "max_batch_tokens": MAX_BATCH_TOKENS,
            "blocks": sizes.num_blocks,
            "tokens_out": count,
            "seconds": taken,
            "is_whole": is_whole,
            "failed_before": list(notes),
            "gpu": gpu_state(),
            "note": f"attention {attention}" + ("" if is_whole else f"; stopped after {taken:.0f} s of it"),
        }
        if not is_whole:
            # Waits for the step under way: what its thread computes with is dropped as soon as this returns.
            manager.stop(timeout=STOPPING_S, **({"hard_stop": True} if _can_stop_hard(manager) else {}))
    if not count:
        raise RuntimeError(f"no token within {taken:.0f} s")
    return Figure(name, "tok/s", (count / taken,), about=about)


def _collect(manager: Any, num_requests: int, deadline: float) -> tuple[int, bool]:
    """Return the tokens generated until all is done, or the deadline; and whether all is done.

    Raises:
        RuntimeError: it has ended before.
    """
    done: list[int] = []
    while len(done) < num_requests:
        if time.perf_counter() > deadline:
            return sum(done) + _tokens_under_way(manager), False
        result = manager.get_result(timeout=0.2)
        if result is not None and getattr(result, "error", None):
            raise RuntimeError(f"a request failed: {result.error}")
        if result is not None and result.is_finished():
            done.append(len(result.generated_tokens))
        elif result is None and not manager.is_running():
            raise RuntimeError(f"it ended early: {getattr(manager, 'background_thread_status', None)}")
    return sum(done), True


def _tokens_under_way(manager: Any) -> int:
    """Return the tokens of requests that are not finished."""
    active = manager.batch_processor.scheduler.active_requests
    return sum(len(state.generated_tokens) for state in list(active.values()))


def _can_stop_hard(manager: Any) -> bool:
    return "hard_stop" in manager.stop.__code__.co_varnames


def _generate(model: Any, prompts: Sequence[Sequence[int]], num_new: int) -> float:
    began = time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=num_new,
                max_new_tokens=num_new,
                pad_token_id=0,
                use_cache=True,
            )
        if output.shape[1] != len(prompt) + num_new:
            raise RuntimeError("an answer of transformers ended early")
    return time.perf_counter() - began
