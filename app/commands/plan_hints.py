"""Suggestions for a model that does not fit, or whose KV cache is smaller than a sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from app.checkpoint.spec import ModelSpec
from app.commands.budget import GPUS, Budget, context, gpu, has_kernels, make_budget, size
from app.config.settings import Config


def hints(config: Config, spec: ModelSpec, budget: Budget, length: int) -> list[str]:
    """Return one line for each change that increases the KV cache, if it is too small for `length` tokens."""
    if budget.capacity_tokens >= length:
        return []
    return [
        *_shorter_dtype(config, spec, budget),
        *_quantized(config, spec, budget),
        *_other_cache(budget, length),
        *_shorter_context(config, spec, budget),
        *_more_memory(config, spec, budget, length),
    ]


def _shorter_dtype(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    if spec.dtype != "float32":
        return
    shorter = make_budget(config, dataclasses.replace(spec, dtype="bfloat16"), budget.memory)
    yield f"--dtype bfloat16: weights of {size(shorter.weight_bytes)}, {_outcome(shorter)}"


def _quantized(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    """Suggest quantization, which saves memory only with the native kernels."""
    if budget.memory.is_gpu or not has_kernels(config):
        return
    if config.model.quantization is None:
        model = dataclasses.replace(config.model, quantization="int8")
        smaller = make_budget(dataclasses.replace(config, model=model), spec, budget.memory)
        yield f"--quantization int8: weights of {size(smaller.weight_bytes)}, {_outcome(smaller)}"
    if config.cache.kv_cache_dtype == "auto" and budget.fits:
        cache = dataclasses.replace(config.cache, kv_cache_dtype="int8")
        smaller = make_budget(dataclasses.replace(config, cache=cache), spec, budget.memory)
        yield f"--kv-cache-dtype int8: {size(smaller.block.bytes_per_token)} per token, {_outcome(smaller)}"


def _outcome(budget: Budget) -> str:
    return f"{budget.capacity_tokens:,} tokens of KV cache" if budget.fits else "not sufficient alone"


def _other_cache(budget: Budget, length: int) -> Iterator[str]:
    """Suggest a sufficient number of blocks, or else the largest that fits."""
    block = budget.block
    wanted = -(-length // block.block_size)
    room = budget.room_bytes - (0 if budget.memory.is_gpu else budget.activation_bytes + budget.swap_bytes)
    num_blocks = min(wanted, room // block.bytes_per_block)
    if num_blocks > budget.num_blocks:
        cache = size(num_blocks * block.bytes_per_block)
        yield f"--num-kv-blocks {num_blocks}: a KV cache of {cache}, {num_blocks * block.block_size:,} tokens"


def _shorter_context(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    if budget.fits and budget.capacity_tokens < context(config, spec):
        yield f"--max-model-len {budget.capacity_tokens}: a context that fits the KV cache"


def _more_memory(config: Config, spec: ModelSpec, budget: Budget, length: int) -> Iterator[str]:
    """Suggest the smallest GPU, or a size of RAM, that holds one sequence of `length` tokens."""
    block = budget.block
    if not budget.memory.is_gpu:
        cache = -(-length // block.block_size) * block.bytes_per_block
        enough = budget.memory.process_bytes + budget.weight_bytes + budget.activation_bytes + cache
        if enough > budget.memory.num_bytes:
            yield f"more free memory: {size(enough)} are enough for one sequence of {length:,} tokens"
        return
    default = dataclasses.replace(config.cache, num_kv_blocks=None, kv_cache_memory=None)
    config = dataclasses.replace(config, cache=default)
    for name, num_bytes in GPUS.items():
        if make_budget(config, spec, gpu(config, name, num_bytes)).capacity_tokens >= length:
            if num_bytes > budget.memory.num_bytes:
                yield f"a larger GPU: {name} ({size(num_bytes)}) is enough for one sequence of {length:,} tokens"
            return
    yield f"no single GPU known to this command is enough for one sequence of {length:,} tokens"
