"""The output of `quire plan` for terminals of at least 40 columns: tables, bars, and suggestions.

Suggestions are made for a model that does not fit, or whose KV cache is smaller than a sequence.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.checkpoint.expert_sizes import active_parameters
from app.checkpoint.hub.fitting_quant import FittingQuant
from app.checkpoint.names import served_name
from app.checkpoint.sizes import item_bytes, kv_item_bytes, kv_scale_bytes
from app.checkpoint.spec import ModelSpec
from app.commands.best_speed import BestSpeed
from app.commands.budget import (
    GPUS,
    STORE_BYTES,
    Budget,
    active_weight_bytes,
    context,
    grammar_process_bytes,
    has_kernels,
    known_gpu,
    make_budget,
    size,
    stored_tokens,
)
from app.config.devices import describe_capability
from app.config.settings import Config
from app.observe.terminal import Colour, Terminal

LABEL = "  {:<11} {:>10}  "
LABEL_WIDTH = len(LABEL.format("", ""))


class Part(NamedTuple):
    """One line with a bar that begins at `begin` bytes and has a length of `num_bytes`."""

    name: str
    begin: int
    num_bytes: int
    colour: Colour


class Beside(NamedTuple):
    """All that a plan says beside memory: the format of the files, the speed on this machine, and a quant that fits."""

    stored: str = ""
    speed: BestSpeed | None = None
    quant: FittingQuant | None = None


def page(
    terminal: Terminal,
    config: Config,
    spec: ModelSpec,
    budget: Budget,
    lengths: Sequence[int],
    beside: Beside = Beside(),  # noqa: B008 - it cannot be changed
) -> list[str]:
    """Return the lines of the plan."""
    estimate = "This is an estimate: the memory for driver, libraries and graphs varies."
    sections = [
        _wrapped(terminal, _title(config, spec, beside.stored), Colour.BOLD),
        _verdict(terminal, config, spec, budget),
        _speed(terminal, beside.speed),
        _memory(terminal, budget),
        _weights(terminal, config, spec, budget),
        _cache(terminal, config, spec, budget),
        _grammars(terminal, spec),
        _sequences(terminal, config, budget, lengths) if budget.fits else (),
        _suggestions(terminal, [*_quant(beside.quant), *_hints(config, spec, budget, max(lengths))]),
        _wrapped(terminal, estimate, Colour.DIM) if budget.memory.is_gpu else (),
    ]
    return [line for section in map(list, sections) if section for line in ("", *section)][1:]


def _title(config: Config, spec: ModelSpec, stored: str) -> str:
    count = spec.num_parameters()
    weights = f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    name = served_name(config.model)
    dtype = f"{spec.dtype}, {config.model.quantization}" if config.model.quantization else spec.dtype
    dtype = f"{dtype} (files: {stored})" if stored else dtype
    return f"{name}: {spec.architecture}, {weights} weights, {dtype}, context {context(config, spec):,}"


def _verdict(terminal: Terminal, config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    block, tokens = budget.block, f"{budget.capacity_tokens:,} tokens"
    if budget.memory.rejection:
        text, colour = f"Does not start: {budget.memory.rejection}.", Colour.RED
    elif budget.too_small:
        one_block = f"one block ({block.block_size} tokens, {size(block.bytes_per_block)})"
        text, colour = f"Does not start: {budget.too_small} is less than {one_block}.", Colour.RED
    elif not budget.fits:
        text, colour = f"Does not fit: {size(budget.missing_bytes)} more are needed.", Colour.RED
    elif budget.capacity_tokens < context(config, spec):
        fewer = f"fewer than the context of {context(config, spec):,}: longer requests will be rejected"
        text, colour = f"Fits, but the KV cache holds {tokens}, {fewer}.", Colour.YELLOW
    else:
        text, colour = f"Fits: the KV cache holds {tokens}.", Colour.GREEN
    yield from _wrapped(terminal, text, colour)


def _speed(terminal: Terminal, speed: BestSpeed | None) -> Iterator[str]:
    if speed is not None:
        rate = f"{speed.bytes_per_second / 1e9:,.0f} GB/s"
        text = f"One answer gets at best {speed} here: a token reads {size(speed.active_bytes)} of weights"
        yield from _wrapped(terminal, f"{text}, and this machine reads {rate}.")


def _quant(quant: FittingQuant | None) -> Iterator[str]:
    if quant is not None:
        yield f"a smaller quant: {quant} fits"


def _memory(terminal: Terminal, budget: Budget) -> Iterator[str]:
    """Show the parts of the memory side by side, and the missing memory after the end."""
    memory = budget.memory
    about = "" if memory.capability is None else f", {describe_capability(memory.capability)}"
    title = f"{memory.name[0].upper()}{memory.name[1:]}: {size(memory.num_bytes)}{about}"
    yield from _wrapped(terminal, title, Colour.BOLD)
    parts = [("weights", budget.weight_bytes, Colour.BLUE)]
    if memory.process_bytes:
        parts.insert(0, ("process", memory.process_bytes, Colour.DIM))
    parts.append(("activations", budget.activation_bytes, Colour.MAGENTA))
    if not budget.too_small:
        parts.append(("KV cache", budget.cache_bytes, Colour.GREEN))
    if budget.swap_bytes:
        parts.append(("swap space", budget.swap_bytes, Colour.YELLOW))
    if budget.fits:
        parts.append(("left free", max(0, budget.left_bytes), Colour.DIM))
    elif memory.is_gpu:
        parts.append(("reserve", memory.reserved_bytes, Colour.DIM))
    begin, stacked = 0, []
    for name, num_bytes, colour in parts:
        stacked.append(Part(name, begin, num_bytes, colour))
        begin += num_bytes
    if missing := budget.missing_bytes:
        stacked.append(Part("available", 0, memory.num_bytes, Colour.DIM))
        stacked.append(Part("missing", memory.num_bytes, missing, Colour.RED))
    yield from _bars(terminal, stacked, max(memory.num_bytes + missing, begin))


def _weights(terminal: Terminal, config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    yield from _wrapped(terminal, f"Weights: {size(budget.weight_bytes)}", Colour.BOLD)
    yield from _wrapped(terminal, f"= {_weight_formula(config, spec, budget)}", indent="  ")
    parts = [Part(name, 0, num_bytes, Colour.BLUE) for name, num_bytes in budget.weight_bytes_by_kind.items()]
    yield from _bars(terminal, parts, budget.weight_bytes)
    if (experts := spec.experts) is not None:
        active = size(active_weight_bytes(config, spec, budget.stored_type))
        text = f"{experts.per_token} of {experts.count} experts compute a token: {active} are read for one"
        yield from _wrapped(terminal, f"{text}, {active_parameters(spec) / 1e9:.2f} B weights", indent="  ")


def _weight_formula(config: Config, spec: ModelSpec, budget: Budget) -> str:
    quantization, each = config.model.quantization, item_bytes(spec)
    plain = f"{spec.num_parameters():,} × {each} bytes"
    if quantization is None:
        num_plain = spec.num_parameters() * each
        return plain if budget.weight_bytes >= num_plain else f"less than {plain}: quantized as in the files"
    if not has_kernels(config):
        return f"{plain}: {quantization} saves no memory without the native kernels"
    packed = "8.5 bits" if quantization == "int8" else "5 bits (the output layer: 8.5)"
    also = ", of which the output layer is a quantized copy" if spec.tie_word_embeddings else ""
    return f"{packed} each in {quantization} matrices; {each} bytes each in norms, biases and the embedding{also}"


def _cache(terminal: Terminal, config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    block, dtype = budget.block, config.cache.kv_cache_dtype
    head = f"{spec.head_dim} numbers × {kv_item_bytes(spec, dtype)} bytes"
    if kv_scale_bytes(dtype):
        head = f"({spec.head_dim} bytes + {kv_scale_bytes(dtype)} for a scale)"
    formula = f"2 (keys, values) × {spec.num_layers} layers × {spec.num_kv_heads} KV heads × {head}"
    yield from _wrapped(terminal, f"KV cache: {size(block.bytes_per_token)} per token", Colour.BOLD)
    yield from _wrapped(terminal, f"= {formula}", indent="  ")
    if num_windowed := sum(layer.window is not None for layer in spec.layers):
        text = (
            f"{num_windowed} of {spec.num_layers} layers look back {_windows(spec)} tokens, but keep those before, too"
        )
        yield from _wrapped(terminal, text, indent="  ")
    if budget.fits:
        text = (
            f"{budget.num_blocks:,} blocks × {block.block_size} tokens ({size(block.bytes_per_block)} each) "
            f"= {budget.capacity_tokens:,} tokens"
        )
        yield from _wrapped(terminal, text, indent="  ")
    if budget.host_cache_bytes:
        num_tokens = budget.host_cache_bytes // block.bytes_per_token
        text = f"{size(budget.host_cache_bytes)} of swap space in host memory: {num_tokens:,} more tokens"
        yield from _wrapped(terminal, text, indent="  ")
    if not budget.memory.is_gpu:
        num_tokens, space = stored_tokens(config, block), size(config.server.kv_disk_space)
        text = f"{space} of disk (--kv-disk): {num_tokens:,} more tokens, and up to {size(STORE_BYTES)} of RAM"
        yield from _wrapped(terminal, text, indent="  ")


def _windows(spec: ModelSpec) -> str:
    """Return the windows of layers, for people."""
    return " or ".join(f"{window:,}" for window in sorted({layer.window for layer in spec.layers if layer.window}))


def _grammars(terminal: Terminal, spec: ModelSpec) -> Iterator[str]:
    needed, num_tokens = size(grammar_process_bytes(spec.vocab_size)), f"{spec.vocab_size:,} tokens"
    text = f"Grammars need about {needed} more RAM from the first one on, for a vocabulary of {num_tokens}."
    yield from _wrapped(terminal, text)


def _sequences(terminal: Terminal, config: Config, budget: Budget, lengths: Sequence[int]) -> Iterator[str]:
    """Show the number of sequences that fit, by length; a bar is full at `max_num_seqs`."""
    seats = config.scheduler.max_num_seqs
    width = terminal.width - LABEL_WIDTH
    yield from _wrapped(terminal, "Sequences that fit at once", Colour.BOLD)
    scale = f"a full bar: --max-num-seqs {seats}"
    scale = scale if len(scale) <= width else f"full: {seats}"
    yield terminal.paint(LABEL.format("tokens each", "fit") + scale, Colour.DIM)
    for length in lengths:
        count = budget.num_sequences(length)
        colour = Colour.GREEN if count else Colour.RED
        bar = terminal.paint(terminal.bar(count / seats, width), colour)
        yield (LABEL.format(f"{length:>11,}", f"{count:,}") + bar).rstrip()


def _suggestions(terminal: Terminal, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield terminal.paint("Suggestions", Colour.BOLD)
    for line in lines:
        yield from _wrapped(terminal, line, indent="  ")


def _bars(terminal: Terminal, parts: Sequence[Part], total: int) -> Iterator[str]:
    width = terminal.width - LABEL_WIDTH
    for name, begin, num_bytes, colour in parts:
        bar = terminal.bar(num_bytes / total, width, begin / total)
        yield (LABEL.format(name, size(num_bytes)) + terminal.paint(bar, colour)).rstrip()


def _wrapped(terminal: Terminal, text: str, colour: Colour | None = None, indent: str = "") -> Iterator[str]:
    hanging = indent + "  " if indent else ""
    lines = textwrap.wrap(terminal.text(text), terminal.width, initial_indent=indent, subsequent_indent=hanging)
    for line in lines:
        yield line if colour is None else terminal.paint(line, colour)


def _hints(config: Config, spec: ModelSpec, budget: Budget, length: int) -> list[str]:
    """Return one line for each change that increases the KV cache, if it is too small for `length` tokens."""
    if budget.capacity_tokens >= length:
        return []
    return [
        *_shorter_dtype(config, spec, budget),
        *_quantized(config, spec, budget),
        *_smaller_steps(config, spec, budget),
        *_other_cache(budget, length),
        *_shorter_context(config, spec, budget),
        *_more_memory(config, spec, budget, length),
    ]


def _shorter_dtype(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    if spec.dtype != "float32":
        return
    shorter = make_budget(config, dataclasses.replace(spec, dtype="bfloat16"), budget.memory, budget.stored_type)
    yield f"--dtype bfloat16: weights of {size(shorter.weight_bytes)}, {_outcome(shorter)}"


def _quantized(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    """Suggest quantization, which saves memory only with the native kernels."""
    if budget.memory.is_gpu or not has_kernels(config):
        return
    if config.model.quantization is None:
        model = dataclasses.replace(config.model, quantization="int8")
        smaller = make_budget(dataclasses.replace(config, model=model), spec, budget.memory, budget.stored_type)
        if smaller.weight_bytes < budget.weight_bytes:
            yield f"--quantization int8: weights of {size(smaller.weight_bytes)}, {_outcome(smaller)}"
    if config.cache.kv_cache_dtype == "auto" and budget.fits:
        cache = dataclasses.replace(config.cache, kv_cache_dtype="int8")
        smaller = make_budget(dataclasses.replace(config, cache=cache), spec, budget.memory, budget.stored_type)
        yield f"--kv-cache-dtype int8: {size(smaller.block.bytes_per_token)} per token, {_outcome(smaller)}"


def _smaller_steps(config: Config, spec: ModelSpec, budget: Budget) -> Iterator[str]:
    """Suggest the most tokens in a step, among halves of the setting, whose activations fit."""
    num_tokens, fewest = config.scheduler.max_num_batched_tokens, max(8, config.scheduler.max_num_seqs)
    while not budget.fits and not budget.too_small and num_tokens > fewest:
        num_tokens = max(num_tokens // 2, fewest)
        scheduler = dataclasses.replace(config.scheduler, max_num_batched_tokens=num_tokens)
        smaller = make_budget(dataclasses.replace(config, scheduler=scheduler), spec, budget.memory, budget.stored_type)
        if smaller.fits:
            text = f"--max-num-batched-tokens {num_tokens}: activations of {size(smaller.activation_bytes)}"
            yield f"{text}, {_outcome(smaller)}"
            return


def _outcome(budget: Budget) -> str:
    return f"{budget.capacity_tokens:,} tokens of KV cache" if budget.fits else "not sufficient alone"


def _other_cache(budget: Budget, length: int) -> Iterator[str]:
    """Suggest a sufficient number of blocks, or else the largest that fits."""
    block = budget.block
    wanted = -(-length // block.block_size)
    num_blocks = min(wanted, (budget.room_bytes - budget.swap_bytes) // block.bytes_per_block)
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
        memory = known_gpu(config, name)
        made = make_budget(config, spec, memory)
        if not made.memory.rejection and made.capacity_tokens >= length:
            if num_bytes > budget.memory.num_bytes:
                yield f"a larger GPU: {name} ({size(num_bytes)}) is enough for one sequence of {length:,} tokens"
            return
    yield f"no single GPU known to this command is enough for one sequence of {length:,} tokens"
